// The largest or the smallest element, for the folds that look for it.

#define SEEKS_LARGEST (IS_SET(JOIN_MAX) || IS_SET(JOIN_ARGMAX))
#define WORST (SEEKS_LARGEST ? LOWEST : HIGHEST)
#define BETTER(b, a) (SEEKS_LARGEST ? (b) > (a) : (b) < (a))
#define BEST(a, b) (SEEKS_LARGEST ? LARGER(a, b) : SMALLER(a, b))
