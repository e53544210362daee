// Joins the parts of `members` threads, a power of 2. The first thread gets the result. All threads must call this.
LOCAL_FUNCTION Part join(Part own, int members, LOCAL Part *parts) {
#pragma unroll 1
    for (int below = members / 2; below > 0; below /= 2) {
        parts[LANE] = own;
        BARRIER();
        if ((LANE & (members - 1)) < below) own = joined(own, parts[LANE + below]);
        BARRIER();
    }
    return own;
}
