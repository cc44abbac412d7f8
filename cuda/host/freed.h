// Overwrites the memory of NumPy arrays when it is freed, and keeps it for a while. Late reads then get wrong data, and
// late writes destroy no other array. backends/host/memory.py replaces NumPy's own function with this one.
#pragma once

#include <deque>

namespace emulator {

constexpr int kFreedByte = 0xdd;
constexpr size_t kMostFreedNbytes = 64 << 20;  // kept until then; after that, the oldest goes back to NumPy

struct Freed {
    void* context;
    void* memory;
    size_t nbytes;
};

struct FreedMemory {
    std::deque<Freed> kept;
    size_t nbytes = 0;
};

// Never destroyed: arrays are freed until the very end of the process.
inline FreedMemory& freed_memory() {
    static FreedMemory& memory = *new FreedMemory;
    return memory;
}

}  // namespace emulator

EMULATOR_EXPORT void (*emulator_free)(void* context, void* memory, size_t nbytes);  // NumPy's own
void (*emulator_free)(void* context, void* memory, size_t nbytes);

// NumPy calls this with the interpreter's lock.
EMULATOR_EXPORT void emulator_overwrite_and_free(void* context, void* memory, size_t nbytes) {
    if (memory == nullptr) return;
    memset(memory, emulator::kFreedByte, nbytes);
    emulator::FreedMemory& freed = emulator::freed_memory();
    freed.kept.push_back({context, memory, nbytes});
    freed.nbytes += nbytes;
    while (freed.nbytes > emulator::kMostFreedNbytes) {
        const emulator::Freed oldest = freed.kept.front();
        freed.kept.pop_front();
        freed.nbytes -= oldest.nbytes;
        emulator_free(oldest.context, oldest.memory, oldest.nbytes);
    }
}
