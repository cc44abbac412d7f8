// A memory system that delays and reorders a block's stores to peers as far as the PTX model allows.
//
// An x86 CPU makes stores visible in program order, so a forgotten release would never show in the emulator.
// In hostile mode st_relaxed_sys, st_after_loads_sys, st_packet_sys and put_pack go to this buffer in pieces of at most
// eight bytes; each is written after a random number of scheduler passes, or of yields once the kernel is over.
// A release by a thread first writes what it must: its own stores, its warp's before the last __syncwarp(),
// its group's before their last barrier, and its block's before the last __syncthreads().
//
// The block sees its own buffered stores through the loads of ordering.h, not through a plain C++ load:
// read with get_pack what was written with put_pack. A __threadfence() writes nothing here, for its scope
// is one GPU and what is buffered is meant for another. ThreadSanitizer builds have no buffer: there the
// detector finds a missing release by itself, and delayed stores would blame the wrong thread.
#pragma once

namespace emulator {

// xorshift64*: small, and the same everywhere, so that a seed means the same schedule on every machine.
class Random {
  public:
    explicit Random(u64 seed = 0) : state_(seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {
        if (state_ == 0) state_ = 1;
        for (int i = 0; i < 4; ++i) next();  // seeds that differ in one bit start out alike
    }
    EMULATOR_UNSEEN u64 next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    EMULATOR_UNSEEN u32 below(u32 bound) { return static_cast<u32>(((next() >> 32) * bound) >> 32); }

  private:
    u64 state_;
};

// The origin of a store: thread, warp, how many barriers its warp and block have passed; the group that releases, or has met
// since.
struct Origin {
    u32 thread, warp, warp_barriers, block_barriers, group;
};

class StoreBuffer {
  public:
    explicit StoreBuffer(u64 seed) : random_(seed) {}
    bool empty() const { return pieces_.empty(); }

    template <class T>
    void store(T* p, T value, const Origin& origin) {
        settle(p);  // stores to one address never overtake each other
        Piece piece{p, 0, sizeof(T), pass_ + delay(), origin};
        piece.origin.group = 0;
        memcpy(&piece.value, &value, sizeof(T));
        where_[granule(p)] = pieces_.size();
        pieces_.push_back(piece);
    }

    template <class T>
    T load(const T* p) {
        auto found = where_.find(granule(p));
        if (found != where_.end()) {
            const Piece& piece = pieces_[found->second];
            if (piece.address == p && piece.nbytes == sizeof(T)) {
                T value;
                memcpy(&value, &piece.value, sizeof(T));
                return value;
            }
            settle(p);  // a word of another width: rare, so the delay simply ends here
        }
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);
    }

    // Writes what is buffered for the eight bytes around p.
    void settle(const void* p) {
        auto found = where_.find(granule(p));
        if (found != where_.end()) write(found->second);
    }

    // Writes what a release by `by` promises to be visible.
    void release(const Origin& by) {
        for (size_t i = pieces_.size(); i-- > 0;) {
            const Origin& from = pieces_[i].origin;
            const bool in_warp = from.warp == by.warp && from.warp_barriers < by.warp_barriers;
            const bool in_group = from.group != 0 && from.group == by.group;
            if (from.thread == by.thread || in_warp || in_group || from.block_barriers < by.block_barriers) write(i);
        }
    }

    // A group has met: a release by any of it covers what `member(thread)` stored before.
    template <class Member>
    void order(u32 group, Member member) {
        for (Piece& piece : pieces_)
            if (member(piece.origin.thread)) piece.origin.group = group;
    }

    // One scheduler pass is over.
    void tick() {
        ++pass_;
        for (size_t i = pieces_.size(); i-- > 0;)
            if (pieces_[i].due <= pass_) write(i);
    }

  private:
    struct Piece {
        void* address;
        u64 value, nbytes, due;
        Origin origin;
    };

    static u64 granule(const void* p) { return reinterpret_cast<u64>(p) >> 3; }

    // Mostly short, since every wait takes some passes; now and then longer than several steps of a peer.
    u64 delay() { return random_.below(8) != 0 ? random_.below(8) : random_.below(512); }

    void write(size_t i) {
        const Piece piece = pieces_[i];
        where_.erase(granule(piece.address));
        if (i + 1 != pieces_.size()) {
            pieces_[i] = pieces_.back();
            where_[granule(pieces_[i].address)] = i;
        }
        pieces_.pop_back();
        if (piece.nbytes == 8) {
            __atomic_store_n(static_cast<u64*>(piece.address), piece.value, __ATOMIC_RELAXED);
        } else {
            const u32 word = static_cast<u32>(piece.value);
            __atomic_store_n(static_cast<u32*>(piece.address), word, __ATOMIC_RELAXED);
        }
    }

    Random random_;
    u64 pass_ = 0;
    std::vector<Piece> pieces_;
    std::unordered_map<u64, size_t> where_;  // granule -> index of its only piece
};

}  // namespace emulator
