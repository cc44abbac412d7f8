// A fiber: a stack and the registers that a function call must preserve; and the switch to another fiber.
//
// swapcontext() would do, but it makes a system call per switch (to save the signal mask), which costs more
// than most kernels' work between two barriers. The hand-written switch takes some nanoseconds; ucontext is
// for other processors.
#pragma once

#if (!defined(__x86_64__) && !defined(__aarch64__)) || defined(PYNCCLX_UCONTEXT)
#define EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulator {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackNbytes = 256 << 10;  // instrumented frames are larger
#else
constexpr size_t kStackNbytes = 64 << 10;
#endif

#if defined(EMULATOR_UCONTEXT)
typedef ucontext_t Registers;

inline void prepare_registers(Registers& registers, char* bottom, size_t nbytes, void (*entry)()) {
    getcontext(&registers);
    registers.uc_stack.ss_sp = bottom;
    registers.uc_stack.ss_size = nbytes;
    registers.uc_link = nullptr;
    makecontext(&registers, entry, 0);
}

inline void switch_registers(Registers& leave, Registers& enter) { swapcontext(&leave, &enter); }
#else
typedef void* Registers;  // the stack pointer; the registers lie on the stack, where switching pushed them

#if defined(__x86_64__)
constexpr int kSaved = 6;        // rbp rbx r12 r13 r14 r15
constexpr int kReturn = kSaved;  // the word after them is where `ret` goes
constexpr int kFrame = 8;        // with two more words, so that the entry finds the stack as after a call
asm(R"(
    .pushsection .text
    .weak pyncclx_switch
    .hidden pyncclx_switch
    .type pyncclx_switch, @function
    .p2align 4
pyncclx_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
    .size pyncclx_switch, .-pyncclx_switch
    .popsection
)");
#else
constexpr int kReturn = 11;  // x30 among x19..x30, then d8..d15
constexpr int kFrame = 20;
asm(R"(
    .pushsection .text
    .weak pyncclx_switch
    .hidden pyncclx_switch
    .type pyncclx_switch, %function
    .p2align 4
pyncclx_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0];   stp x21, x22, [sp, #16];  stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48];  stp x27, x28, [sp, #64];  stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96];    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0];   ldp x21, x22, [sp, #16];  ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48];  ldp x27, x28, [sp, #64];  ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96];    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size pyncclx_switch, .-pyncclx_switch
    .popsection
)");
#endif
extern "C" void pyncclx_switch(Registers* leave, Registers enter);

EMULATOR_UNSEEN
inline void prepare_registers(Registers& registers, char* bottom, size_t nbytes, void (*entry)()) {
    void** frame = reinterpret_cast<void**>(bottom + nbytes) - kFrame;
    for (int i = 0; i < kFrame; ++i) frame[i] = nullptr;
    frame[kReturn] = reinterpret_cast<void*>(entry);
    registers = frame;
}

EMULATOR_UNSEEN inline void switch_registers(Registers& leave, Registers& enter) {
    pyncclx_switch(&leave, enter);
}
#endif

struct Fiber {
    Registers registers;
    void* tsan = nullptr;          // ThreadSanitizer's handle
    void* fake = nullptr;          // AddressSanitizer's
    const void* bottom = nullptr;  // lowest address of the stack
    size_t nbytes = 0;
};

// Makes the fiber start over: the next switch to it calls `entry` on an empty stack.
EMULATOR_UNSEEN inline void prepare(Fiber& fiber, void (*entry)()) {
    char* bottom = static_cast<char*>(const_cast<void*>(fiber.bottom));
    asan_fresh(bottom, fiber.nbytes);
    fiber.fake = nullptr;
    prepare_registers(fiber.registers, bottom, fiber.nbytes, entry);
}

// Leaves `from` for `to`; returns when a fiber switches back to `from`.
EMULATOR_UNSEEN inline void switch_fiber(Fiber& from, Fiber& to) {
    asan_leave(&from.fake, to.bottom, to.nbytes);
    tsan_switch(to.tsan);
    switch_registers(from.registers, to.registers);
    asan_arrive(from.fake, &to.bottom, &to.nbytes);
}

}  // namespace emulator
