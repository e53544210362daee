// The joining of what the threads of a team have added up.

// Defines a function that joins one value of each thread in a fixed order. The threads for which `wants` holds get the result; the first
// of a team is one of them. `shared` has room for THREADS values; consecutive joins of a thread that want all results alternate between two
// of them. Every thread of the group must call it. `exchange` is a WAVE_EXCHANGE of T.
#if WAVE > 1
#define TEAM_JOINED(name, T, exchange, join, wants) \
    LOCAL_FUNCTION T name(T mine, int member, int members, LOCAL T *shared) { \
        for (int by = (members < WAVE ? members : WAVE) / 2; by > 0; by /= 2) mine = join(mine, exchange(mine, by)); \
        if (members > WAVE) { \
            int first = (LANE - member) / WAVE; \
            if (LANE % WAVE == 0) shared[LANE / WAVE] = mine; \
            BARRIER(); \
            if (wants) { \
                mine = shared[first]; \
                for (int i = 1; i < members / WAVE; i++) mine = join(mine, shared[first + i]); \
            } \
        } \
        return mine; \
    }
#else
#define TEAM_JOINED(name, T, exchange, join, wants) \
    LOCAL_FUNCTION T name(T mine, int member, int members, LOCAL T *shared) { \
        for (int below = members / 2; below > 0; below /= 2) { \
            shared[LANE] = mine; \
            BARRIER(); \
            if (member < below) mine = join(mine, shared[LANE + below]); \
            BARRIER(); \
        } \
        return mine; \
    }
#endif

// Defines a function that gives all threads of a team the value of its first, where they may have others: after a join that all threads
// wanted, only if the order of its operands changes the result (`is_symmetric` is 0) or if there are no waves.
#if WAVE > 1
#define TEAM_SPREAD(name, T, exchange) \
    LOCAL_FUNCTION T name(T v, int member, int members, int is_symmetric, LOCAL T *shared) { \
        for (int by = 1; !is_symmetric && members <= WAVE && by < members; by *= 2) { \
            T other = exchange(v, by); \
            if (member & by) v = other; \
        } \
        return v; \
    }
#else
#define TEAM_SPREAD(name, T, exchange) \
    LOCAL_FUNCTION T name(T v, int member, int members, int is_symmetric, LOCAL T *shared) { \
        int first = LANE - member; \
        shared[LANE] = v; \
        BARRIER(); \
        return shared[first]; \
    }
#endif
