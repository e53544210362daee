// Switching between stacks.
#pragma once
#include <cstdint>
#include <cstring>

// Keeps the callee-saved registers on the stack, its pointer in *save, and goes on where `to` was left.
extern "C" void simt_switch(void **save, void *to);

#if defined(__x86_64__)
asm(".text\n.weak simt_switch\n.hidden simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rcx\njmp *%rcx\n");

// A stack on which `entry` begins.
inline void *fresh_stack(char *top, void (*entry)()) {
    void **s = (void **)((uintptr_t)top & ~(uintptr_t)15);
    // In place of a return address: rsp is 8 off a multiple of 16, as after a call.
    *--s = nullptr;
    *--s = (void *)entry;
    for (int i = 0; i < 6; i++) *--s = nullptr;
    return s;
}
#elif defined(__aarch64__)
asm(".text\n.weak simt_switch\n.hidden simt_switch\n.type simt_switch,%function\nsimt_switch:\n"
    "sub sp,sp,#176\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#176\nret\n");

inline void *fresh_stack(char *top, void (*entry)()) {
    char *s = (char *)((uintptr_t)top & ~(uintptr_t)15) - 176;
    memset(s, 0, 176);
    *(void **)(s + 88) = (void *)entry;
    return s;
}
#else
#error "fibers need a switch for this processor"
#endif
