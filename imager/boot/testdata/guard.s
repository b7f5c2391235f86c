# Runs the guard as the firmware would, and ends with status 0 if it does what it should. STATUS is what the firmware answers.
.intel_syntax noprefix
.data
table:    .space 96
          .quad services
services: .space 152
          .quad handle_protocol
loaded:   .space 48
size:     .long 77
.text
.globl _start
_start:
        mov     rbx, rsp
        lea     rcx, [rip+loaded+1]     # a handle is any value
        lea     rdx, [rip+table]
        call    guard
        cmp     rsp, rbx                # back here: only if the firmware failed
        jne     wrong
        mov     ecx, STATUS
        test    ecx, ecx
        jz      wrong
        cmp     rax, rcx
        jne     wrong
        cmp     dword ptr [rip+size], 77
        jne     wrong
        jmp     right

handle_protocol:
        lea     rax, [rip+loaded+1]
        cmp     rcx, rax
        jne     wrong
        movabs  rax, 0x11d295625b1b31a1
        cmp     [rdx], rax
        jne     wrong
        movabs  rax, 0x3b7269c9a0003f8e
        cmp     [rdx+8], rax
        jne     wrong
        lea     rax, [rsp+8]
        test    al, 15                  # the stack is aligned before a call
        jnz     wrong
        lea     rax, [rip+loaded]
        mov     [r8], rax
        mov     rcx, -1                 # a callee may change these
        mov     rdx, -1
        mov     r8, -1
        mov     r9, -1
        mov     qword ptr [rsp+8], -1   # and its own room on the stack
        mov     qword ptr [rsp+32], -1
        mov     eax, STATUS
        ret

guard:  .incbin "guard.bin"
        .org    guard+256
stub:
        lea     rax, [rip+loaded+1]
        cmp     rcx, rax
        jne     wrong
        lea     rax, [rip+table]
        cmp     rdx, rax
        jne     wrong
        lea     rax, [rsp+8]
        cmp     rax, rbx
        jne     wrong
        cmp     dword ptr [rip+size], 0
        jne     wrong
        mov     eax, STATUS
        test    eax, eax
        jnz     wrong
right:  xor     edi, edi
        jmp     exit
wrong:  mov     edi, 1
exit:   mov     eax, 60
        syscall
