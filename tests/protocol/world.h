// Ranks as threads of one process: their leases, their buffers, and a launch that ends the run if it fails.
//
// The ranks share the leases, as GPUs do, and nothing else: no lock, no barrier, no message of the host. What
// orders them is the protocol under test.
#pragma once
#include <stdarg.h>

struct Settings {
    int ranks = 2;
    u64 seed = 1, calls = 50;
    u32 hostile = 0, epoch = 0;  // epoch: as if the channels had so many small operations behind them
    double patience_s = 60;
    u32 channels = 0, slot_packets = 0, chunk_nbytes = 0, slot_rows = 0;  // as pyncclx.memory.layout.plan returns
    u64 nbytes = 0, lines_offset = 0, packets_offset = 0, rings_offset = 0;
};

constexpr int kWrong = 1, kStuck = 3, kTimeout = 4;  // exit status; a sanitizer's is 66

// Says why and ends the process at once: the other ranks may wait for this one.
[[noreturn]] inline void die(int status, const char* format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    _Exit(status);
}

inline u64 mix(u64 a, u64 b) {
    u64 x = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

// Decisions that all ranks must take alike: the same words from the same seed.
class Draw {
  public:
    explicit Draw(u64 seed) : random_(seed) {}
    u64 below(u64 bound) { return bound <= 1 ? 0 : random_.next() % bound; }
    u64 between(u64 low, u64 high) { return low + below(high - low + 1); }
    bool one_in(u64 n) { return below(n) == 0; }
    template <class T>
    T of(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }

  private:
    emulator::Random random_;
};

// User memory of exactly this length: AddressSanitizer guards its end, a pattern what lies before it.
class Buffer {
  public:
    static constexpr unsigned char kPoison = 0xA5;

    explicit Buffer(u64 nbytes, u32 misalignment = 0)
        : nbytes(nbytes), begin_(misalignment), memory_(new unsigned char[misalignment + nbytes]) {
        memset(memory_.get(), kPoison, begin_ + nbytes);
    }
    template <class T = char>
    T* as() const { return reinterpret_cast<T*>(memory_.get() + begin_); }
    unsigned char operator[](u64 i) const { return memory_[begin_ + i]; }
    bool intact() const {
        return std::all_of(memory_.get(), memory_.get() + begin_, [](unsigned char c) { return c == kPoison; });
    }

    const u64 nbytes;

  private:
    const u64 begin_;
    std::unique_ptr<unsigned char[]> memory_;
};

constexpr u64 kHash = 0x5EED;  // of some calls, as kernels are given it

struct ShuffleMemory;  // shuffles.h
struct DeviceMemory;   // device.h

// The number of an operation before the last of `settings.epoch`, mostly of one of the first; 0 if there were few.
inline u32 operation_before(const Settings& settings, Draw& draw) {
    if (settings.epoch < 16) return 0;
    return u32(draw.between(2, draw.one_in(4) ? settings.epoch - 2 : 9));
}

// As if `epoch` operations had gone through a rank's channels, the last of which signalled nothing: whatever they may
// have left in the slots, the rings' counters and `heard` is there, long ago or just before.
inline void begin_at(const Settings& settings, const Team& team, int rank) {
    for (u32 channel = 0; channel < team.channels; ++channel) {
        Draw draw(mix(settings.seed + 1, u64(rank) << 32 | channel));
        ChannelControl& control = *channel_control(team, rank, int(channel));
        control.finished = u64(settings.epoch) << 32;
        control.all_entered = operation_before(settings, draw);
        for (int peer = 0; peer < settings.ranks; ++peer) control.entered[peer] = u64(settings.epoch) << 32;
        for (int i = 0; i < kRings * settings.ranks; ++i) {
            const int ring = i / settings.ranks, peer = i % settings.ranks;
            control.head[ring][peer] = u64(operation_before(settings, draw)) << 32 | 1000;
            control.tail[ring][peer] = u64(operation_before(settings, draw)) << 32 | 1000;
        }
        const u32 slots = u32(settings.ranks - 1) * team.slot_packets;  // packets of one parity
        auto* packets = reinterpret_cast<Pack*>(team.base[rank] + team.packets_offset) + channel * 2 * slots;
        for (u32 i = 0; i < 2 * slots; ++i) {
            const u32 epoch = operation_before(settings, draw);
            packets[i] = epoch == 0 ? Pack{0, 0} : make_packet(draw.below(~0ull), epoch / 2 * 2 + i / slots);
        }
        const u32 rows = u32(settings.ranks - 1) * team.slot_rows * kRowPlaces;  // packs of one parity
        auto* lines = reinterpret_cast<Pack*>(team.base[rank] + team.lines_offset) + channel * 2 * rows;
        for (u32 i = 0; i < 2 * rows; ++i) {
            const u32 epoch = operation_before(settings, draw);
            const u64 flag = epoch == 0 ? 0 : kHash << 32 | (epoch / 2 * 2 + i / rows);
            lines[i] = Pack{draw.below(~0ull), i % 8 == 7 ? flag : draw.below(~0ull)};
        }
        for (u32 lane = 0; lane < kLanes; ++lane) {
            control.came[lane] = u64(operation_before(settings, draw)) << 32 | 1000;
            control.taken[lane] = u64(operation_before(settings, draw)) << 32 | 1000;
        }
    }
}

// The symmetric memory of all ranks; every lease has its exact length too.
struct World {
    const Settings& settings;
    std::vector<char*> leases;
    char* windows[kMaxRanks] = {};  // one window, all of memory: an offset is an address
    ShuffleMemory* shuffle = nullptr;
    DeviceMemory* device = nullptr;

    explicit World(const Settings& settings) : settings(settings) {
        Team team{};
        team.channels = settings.channels;
        team.slot_packets = settings.slot_packets;
        team.slot_rows = settings.slot_rows;
        team.lines_offset = settings.lines_offset;
        team.packets_offset = settings.packets_offset;
        for (int rank = 0; rank < settings.ranks; ++rank) {
            void* lease = nullptr;
            if (posix_memalign(&lease, 128, settings.nbytes) != 0) die(2, "no memory");
            leases.push_back(static_cast<char*>(lease));
            memset(lease, 0, settings.nbytes);
            team.base[rank] = leases.back();
            begin_at(settings, team, rank);
        }
    }
    ~World() {
        for (char* lease : leases) free(lease);
    }
};

// The order of one rank's calls. Two threads make them in turn, so that a kernel which is launched early begins beside the
// one before. To ThreadSanitizer these waits order nothing, except `acquire` and what `await_all_before` reads. They end
// with the kernels they wait for, which fail after Settings::patience_s and then end the process.
class Launches {
  public:
    // Wait until all calls before this one have launched their kernel, and its kernel may begin; return what it then waits
    // for, if it is early.
    EMULATOR_UNSEEN const emulator::Launched* await_turn(u64 call, bool early) {
        const emulator::Launched& before = launched(call - 1);
        while (__atomic_load_n(&begun_, __ATOMIC_ACQUIRE) != call) usleep(50);
        while (early ? !before.lets_next() : !before.has_ended()) usleep(50);
        if (!early) before.acquire();
        return early ? &before : nullptr;
    }

    EMULATOR_UNSEEN emulator::Launched* begin(u64 call, u32 blocks) {
        emulator::Launched& own = launched(call);
        own.begin(blocks);
        if (blocks == 0) own.release();
        __atomic_store_n(&begun_, call + 1, __ATOMIC_RELEASE);
        return &own;
    }

    EMULATOR_UNSEEN void await_end_before(u64 call) {
        while (!launched(call - 1).has_ended()) usleep(50);
    }

    // For calls that launch several kernels, or share memory of the host with other calls.
    void await_all_before(u64 call) {
        while (ended_.load(std::memory_order_acquire) != call) usleep(50);
    }
    void end() { ended_.fetch_add(1, std::memory_order_acq_rel); }

  private:
    // Three are in use at a time: a kernel may still wait for the one before it when the next is launched. The first call has
    // a place before it that nothing has used, which counts as ended.
    emulator::Launched& launched(u64 call) { return launched_[call % 4]; }

    emulator::Launched launched_[4];
    u64 begun_ = 0;
    std::atomic<u64> ended_{0};
};

// One rank in one call. `draw` gives every rank the same words, `own` does not.
struct Call {
    const World& world;
    Team& team;
    Launches& launches;
    const u64 number;
    const bool is_alone;  // launches several kernels, or shares memory of the host: no kernel is early
    const char* name;
    Draw draw, own;
    u32 threads;

    Call(const World& world, Team& team, Launches& launches, u64 number, bool is_alone)
        : world(world), team(team), launches(launches), number(number), is_alone(is_alone), name(""),
          draw(mix(world.settings.seed, number)), own(mix(draw.below(~0ull), team.rank)), threads(draw.of({32u, 64u, 96u})) {
        team.early = own.one_in(2);
        if (is_alone) launches.await_all_before(number);
        // The buffers of all ranks are in a window, or of none, or each as it comes.
        const u64 all = draw.below(3);
        for (Place* place : {&team.send, &team.recv}) *place = Place{all < 2 ? all : own.below(2), nullptr};
    }

    ~Call() {
        if (is_alone) launches.begin(number, 0);
        launches.end();
    }

    int size() const { return team.size; }
    u64 label() const { return mix(world.settings.seed, number); }  // what this call's data is made of

    // Blocks that are enough for `nbytes` in packets, or more; any number for chunks (`each` = 0).
    u32 grid(u64 nbytes, u64 each) {
        const u64 packs = packs_in(nbytes), room = each / kPackNbytes;
        u64 least = 1;
        while (room != 0 && (packs + least - 1) / least > room) ++least;
        return u32(draw.between(least, team.channels));
    }

    // Bytes with which the circles of a chain of lines have several strips, or none more.
    u64 several_strips(u64 grid) {
        const u32 circles = std::min(std::max(team.slot_rows / (2 * kBatchRows), 1u), kMostCircles);
        return draw.one_in(3) ? 0 : (kFixedBatches + draw.below(12)) * circles * grid * kBatchRows * kRowPacks * kPackNbytes;
    }

    template <class Args>
    void run(void (*kernel)(Args), const Args& args, u32 grid) {
        if (own.one_in(8)) usleep(useconds_t(own.below(own.one_in(6) ? 3000 : 300)));  // sometimes for several calls of the others
        const Settings& settings = world.settings;
        const u64 seed = settings.seed == 0 ? 0 : mix(label(), team.rank) | 1;
        Launch how{grid, threads, 0, settings.hostile, seed, settings.patience_s};
        if (!is_alone) {
            how.previous = launches.await_turn(number, own.one_in(2));
            how.launched = launches.begin(number, grid);
        }
        const void* pointers[] = {&args};
        if (emulator::launch(name, kernel, how, pointers) != 0)
            die(kStuck, "call %llu (%s), rank %d is stuck", number, name, team.rank);
        if (!is_alone) launches.await_end_before(number);
        const Watch& watch = *team.watch;
        if (watch.failure != 0)
            die(kTimeout,
                "call %llu (%s), rank %d gave up: epoch %llu, channel %llu, peer %llu, expected %llx, seen %llx",
                number, name, team.rank, watch.epoch, watch.channel, watch.peer, watch.expected, watch.seen);
    }

    // Where in a call the first difference is; the run goes on, so that no rank waits in vain for this one.
    void wrong(const char* what, u64 block, u64 element, const char* format, ...) {
        static std::atomic<int> reported{0};
        failed.store(true, std::memory_order_relaxed);
        if (reported.fetch_add(1, std::memory_order_relaxed) >= 10) return;
        char values[200];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(values, sizeof values, format, arguments);
        va_end(arguments);
        fprintf(stderr, "wrong: call %llu (%s), rank %d of %d: %s: block %llu, element %llu: %s\n", number, name,
                team.rank, team.size, what, block, element, values);
    }

    static std::atomic<bool> failed;
};
inline std::atomic<bool> Call::failed{false};
