// One-sided accumulation into a peer's memory: every element is changed atomically, for kernels of all ranks and the host.
//
// MPI_Accumulate, MPI_Get_accumulate, MPI_Fetch_and_op and MPI_Compare_and_swap use it. For each element, of up to 8 bytes,
//   1. a thread reads the 32- or 64-bit word that has the element;
//   2. it replaces the word by compare-and-swap, and retries if another thread has changed it meanwhile.
// Launch: any number of blocks of up to kMaxThreads threads; they wait for nothing.
#include "elements/reduce_ops.cuh"

struct RmaArgs {
    const char* origin;
    const char* compare;  // for CompareAndSwap; otherwise the same as origin
    char* result;         // for the old elements; may be null
    char* target;         // as mapped here
    u64 count;
};

struct Replace : Operator {
    template <class A>
    __device__ static A combine(A, A b) { return b; }
};
struct NoOp : Operator {
    template <class A>
    __device__ static A combine(A a, A) { return a; }
};
struct CompareAndSwap {};

template <class T, class Op>
struct Update {
    using A = typename AccumulatorOf<T>::type;
    __device__ static T next(T current, T value, T) { return T(Op::combine(A(current), A(value))); }
};
template <class T>
struct Update<T, CompareAndSwap> {
    __device__ static T next(T current, T value, T compare) { return current == compare ? value : current; }
};

// An unsigned number as long as an element.
template <u32 kNbytes>
__device__ auto word_of_nbytes() {
    if constexpr (kNbytes == 1) return (unsigned char)0;
    else if constexpr (kNbytes == 2) return (unsigned short)0;
    else if constexpr (kNbytes == 4) return u32(0);
    else return u64(0);
}

template <class T>
__device__ T element(const char* from, u64 i) {
    T value;
    memcpy(&value, from + i * sizeof(T), sizeof(T));
    return value;
}

// Replaces the word by next(word), and returns its old value.
template <class Word, class Next>
__device__ Word replace_word(Word* word, Next next) {
    Word seen = ld_relaxed_sys(word);
    for (;;) {
        const Word was = atomic_cas_sys(word, seen, next(seen));
        if (was == seen) return was;
        seen = was;
    }
}

// The same for an element, which is a word or a part of one.
template <class T, class Next>
__device__ T replace_element(char* target, Next next) {
    using Word = decltype(word_of_nbytes<sizeof(T)>());
    if constexpr (sizeof(T) >= 4) {
        return bits_as<T>(replace_word(reinterpret_cast<Word*>(target), [&](Word word) {
            return bits_as<Word>(next(bits_as<T>(word)));
        }));
    } else {
        const u32 place = u32(u64(target) % 4), shift = place * 8, mask = u32(Word(~0)) << shift;  // little endian
        const auto in = [&](u32 word) { return bits_as<T>(Word(word >> shift)); };
        return in(replace_word(reinterpret_cast<u32*>(target - place), [&](u32 word) {
            return (word & ~mask) | u32(bits_as<Word>(next(in(word)))) << shift;
        }));
    }
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) accumulate(const __grid_constant__ RmaArgs args) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += u64(gridDim.x) * blockDim.x) {
        const T value = element<T>(args.origin, i), compare = element<T>(args.compare, i);
        const T was = replace_element<T>(
            args.target + i * sizeof(T), [&](T current) { return Update<T, Op>::next(current, value, compare); });
        if (args.result) memcpy(args.result + i * sizeof(T), &was, sizeof(T));
    }
}
