// Channels of a batch, x [batch, channels, inner], and what a group reads of them.
//
// A word has elements of CHANNELS channels. A channel consists of words of VECTOR elements, `width` of them adjacent in memory, and is
// divided into parts of `length` words. A group takes one part (GROUP_Y) of COLUMNS adjacent words' channels, of which there are
// `channels`. A second kernel reads a part in the opposite order, because the end of the first kernel's reads is still in a cache.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of x
// P: dtype of weight and bias
// R: dtype of running statistics
// ACC: f32 or f64, dtype of the arithmetic
// COLUMNS: 1, or more if `inner` is short; words of a group that are adjacent in memory and belong to different channels
// VECTOR: 1 .. 16, elements of a word
// CHANNELS: 1, or VECTOR where channels are adjacent in memory; channels of a word
// WORD: u16 .. u32x4, type of a word
// BATCH: 1.., words of a thread that are read at once
// PER: 0
// AT_ONCE: groups that a multiprocessor should run together
// WIDE: flag, positions have 64 bits
// OF_WORDS: flag, with CHANNELS 1: the parts are those of words of several channels

#include "flags.h"

typedef STORAGE(P) SP;
typedef STORAGE(R) SR;

// The sums of `n` numbers over a channel's threads, in a fixed order; n is at most 2 CHANNELS.
#if COLUMNS == 1 && CHANNELS == 1
#define MEMBERS THREADS
#define WORKER LANE
#define CHANNEL_JOINS() JOINS(2)
#define CHANNEL_SUMS(v, n) team_join(v, n, SIDE(2), JOIN_TO_SUM)
#else
#include "reduction/columns.h"
#define CHANNEL_JOINS() COLUMN_JOINS(2 * CHANNELS)
#define CHANNEL_SUMS(v, n) column_sums(v, n, shared)
#endif

// The parts that a thread joins, RUN of them at once. Only programs with CHANNELS 1 join parts.
#define RUN (IS_SET(OF_WORDS) ? 8 : 4)
#define EACH_RUN(first) for (idx first = 0; first < (idx)parts; first += RUN * MEMBERS)
#define EACH_OF_RUN(u) _Pragma("unroll") for (int u = 0; u < RUN; u++)
#define RUN_PART(first, u) ((first) + (u) * MEMBERS + WORKER)
#define OF_RUN(of_parts, first, u) \
    (RUN_PART(first, u) < (idx)parts ? (of_parts)[RUN_PART(first, u) * (idx)p.channels + (idx)p.channel] : (A)0)

#define EACH_CHANNEL(k) _Pragma("unroll") for (int k = 0; k < CHANNELS; k++)
// The channel of element j of a word.
#define CHANNEL_OF(j) (CHANNELS > 1 ? (j) : 0)
// Elements of a word that belong to one channel.
#define EACH (VECTOR / CHANNELS)
// Channel k of the thread's word, and the number of all channels.
#define OWN_CHANNEL(p, k) ((p).channel * CHANNELS + (k))
#define ALL_CHANNELS(p) ((p).channels * CHANNELS)

// A part of the channels of the thread's words, or of the last ones if the thread has none.
typedef struct {
    i64 channel, channels;
    int is_there;
    idx start, end, width;
} Part;

FUNCTION Part part_of(i64 group, i64 part, i64 channels, i64 words, i64 width, i64 length) {
    Part p;
    i64 c = group * COLUMNS + LANE % COLUMNS, end = (part + 1) * length;
    p.is_there = c < channels;
    p.channel = p.is_there ? c : channels - 1;
    p.channels = channels;
    p.start = (idx)(part * length);
    p.end = (idx)(end < words ? end : words);
    p.width = (idx)width;
    return p;
}

// The position of a word of the channel, in words. A word outside of the part is replaced by another one.
FUNCTION idx word_of(Part p, idx w) {
    uidx at = (uidx)(w < p.end ? w : p.start), width = (uidx)p.width;
    if (CHANNELS > 1) return (idx)(at * (uidx)p.channels + (uidx)p.channel);
    return (idx)((at / width * (uidx)p.channels + (uidx)p.channel) * width + at % width);
}

#define ROUNDS(p) (((p).end - (p).start + BATCH * MEMBERS - 1) / (BATCH * MEMBERS))
#define ROUND_WORD(p, round, u) ((p).start + ((round) * BATCH + (u)) * MEMBERS + WORKER)
#define EACH_ROUND(p, round) for (idx round = 0; round < ROUNDS(p); round++)
#define EACH_ROUND_BACK(p, round) for (idx round = ROUNDS(p) - 1; round >= 0; round--)

FUNCTION void read_round(Read *r, GLOBAL const S *x, Part p, idx round) {
    EACH_OF_BATCH(u) r[u].all = ((GLOBAL const WORD *)x)[word_of(p, ROUND_WORD(p, round, u))];
}

FUNCTION void read_round_once(Read *r, GLOBAL const S *x, Part p, idx round) {
    EACH_OF_BATCH(u) r[u].all = load_once((GLOBAL const WORD *)x + word_of(p, ROUND_WORD(p, round, u)));
}

FUNCTION void put_word(GLOBAL S *y, const A *v, Part p, idx w) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    if (p.is_there && w < p.end) store_once((GLOBAL WORD *)y + word_of(p, w), r.all);
}

// A word that is read again.
FUNCTION void put_word_again(GLOBAL S *y, const A *v, Part p, idx w) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    if (p.is_there && w < p.end) ((GLOBAL WORD *)y)[word_of(p, w)] = r.all;
}
