// One-sided accumulation into a peer's memory: every element is changed atomically, for kernels of all ranks and the host.
//
// MPI_Accumulate, MPI_Get_accumulate, MPI_Fetch_and_op and MPI_Compare_and_swap use it. For each element, of up to 8 bytes,
//   1. a thread reads the 32- or 64-bit word that has the element;
//   2. it replaces the word by compare-and-swap, and retries if another thread has changed it meanwhile.
// Launch: any number of blocks of up to kMaxThreads threads; they wait for nothing.
//   accumulate        the elements of the target are contiguous
//   accumulate_nests  a derived datatype selects them; origin and result are packed
#include "derived/nests.cuh"
#include "elements/reduce_ops.cuh"

struct RmaArgs {
    const char* origin;
    const char* compare;  // for CompareAndSwap; otherwise the same as origin
    char* result;         // for the old elements; may be null
    char* target;         // as mapped here
    u64 count;
};

struct RmaNestArgs {
    DatatypeArgs target;  // as mapped here; its packed memory is the origin, its words are the elements
    char* result;         // for the old elements, packed; may be null
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

// Changes element `i` of origin, compare and result; its counterpart lies at `target`.
template <class T, class Op>
__device__ __forceinline__ void change_element(const RmaArgs& args, u64 i, char* target) {
    const T value = element<T>(args.origin, i), compare = element<T>(args.compare, i);
    const T was = replace_element<T>(target, [&](T current) { return Update<T, Op>::next(current, value, compare); });
    if (args.result) memcpy(args.result + i * sizeof(T), &was, sizeof(T));
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) accumulate(const __grid_constant__ RmaArgs args) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += u64(gridDim.x) * blockDim.x)
        change_element<T, Op>(args, i, args.target + i * sizeof(T));
}

template <class T, class Op>
__global__ void __launch_bounds__(kMaxThreads, 1) accumulate_nests(const __grid_constant__ RmaNestArgs args) {
    const DatatypeArgs& target = args.target;
    const RmaArgs elements{target.packed, target.packed, args.result, target.memory, 0};
    for_each_tile(target, [&](const Nest& nest, u64 tile) {
        for (u32 w = 0; w < kWordsAtOnce; ++w) {
            const u64 word = first_word(nest, tile) + w * blockDim.x;
            if (word >= nest.words) break;
            const Where where = locate<u64>(nest, word);
            change_element<T, Op>(elements, where.packed / sizeof(T), target.memory + where.memory);
        }
    });
}
