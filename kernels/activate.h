// The activation at the end of a kernel.
//
// ACTIVATION: name of a function of one operand, which precedes this file; if not defined, the result is the operand
// A: the arithmetic's type

#ifdef ACTIVATION
FUNCTION A activate(A v) {
    A y;
    ACTIVATION(v, &y);
    return y;
}
#else
#define activate(v) (v)
#endif
