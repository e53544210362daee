// Flags as numbers, so that plain conditions ask for them. A compiler leaves out the branch that is never taken.
//
// A flag is defined as 1, or it is not defined. IS_SET(WEIGHT) is therefore IS_SET_1 or IS_SET_WEIGHT.

#define IS_SET(flag) CAT(IS_SET_, flag)
#define IS_SET_1 1
#define IS_SET_ADAPTIVE 0
#define IS_SET_ADDED 0
#define IS_SET_ALIKE 0
#define IS_SET_BIAS 0
#define IS_SET_CENTERED 0
#define IS_SET_CHANNELS 0
#define IS_SET_CONSTANT 0
#define IS_SET_COUNTED 0
#define IS_SET_CUT 0
#define IS_SET_DX 0
#define IS_SET_FINISH_MEAN 0
#define IS_SET_FINISH_NORM 0
#define IS_SET_GIVEN 0
#define IS_SET_INCLUDE_PAD 0
#define IS_SET_JOINED 0
#define IS_SET_JOIN_ARGMAX 0
#define IS_SET_JOIN_MAX 0
#define IS_SET_JOIN_PROD 0
#define IS_SET_JOIN_SUM 0
#define IS_SET_KEPT 0
#define IS_SET_LAST_NAN 0
#define IS_SET_LOCAL_INDEX 0
#define IS_SET_MOMENTUM 0
#define IS_SET_OF_RESULT 0
#define IS_SET_OF_WORDS 0
#define IS_SET_OTHERS 0
#define IS_SET_PARAMETERS 0
#define IS_SET_PARTIAL_X 0
#define IS_SET_READS_REST 0
#define IS_SET_RELU 0
#define IS_SET_RELU6 0
#define IS_SET_RELU_OF_X 0
#define IS_SET_RESIDUAL 0
#define IS_SET_ROWS 0
#define IS_SET_SHARES 0
#define IS_SET_SQUARES 0
#define IS_SET_SUMS 0
#define IS_SET_TWOFOLD 0
#define IS_SET_UPDATED 0
#define IS_SET_WEIGHT 0
#define IS_SET_WHOLE 0
