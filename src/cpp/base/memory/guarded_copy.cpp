#include "base/memory/guarded_copy.h"

#include <ucontext.h>

#include <cstdint>

#if FAB_SMALL_COPY

// The thread is in a small copy. Some of the memory for variables of this kind is left for libraries that are
// opened later, and they are reached without a call.
extern "C" {
[[gnu::visibility("hidden"), gnu::tls_model("initial-exec"),
  gnu::used]] constinit thread_local bool fab_in_small_copy = false;
}

// In assembler, because the handler has to know where the code begins and ends, and that it has nothing on
// the stack. Scalars go in one access, and are stored once: another process may wait for them, and change
// them at once. Other sizes are two accesses that overlap; from 33 bytes on, the last 32 are loaded first.
asm(R"(
  .pushsection .text, "ax", @progbits
  .p2align 6
  .hidden fab_small_copy, fab_small_copy_begin, fab_small_copy_fault
  .globl fab_small_copy, fab_small_copy_begin, fab_small_copy_fault
  .type fab_small_copy, @function
fab_small_copy:
  .cfi_startproc
  movq fab_in_small_copy@gottpoff(%rip), %r8
  movb $1, %fs:(%r8)
fab_small_copy_begin:
  cmpq $8, %rdx
  ja 3f
  jb 1f
  movq (%rsi), %rax
  movq %rax, (%rdi)
  movb $0, %fs:(%r8)
  movl $1, %eax
  ret
1: # 0 to 7
  cmpl $4, %edx
  jb 2f
  movl (%rsi), %eax
  movl -4(%rsi,%rdx), %ecx
  movl %eax, (%rdi)
  je 9f
  movl %ecx, -4(%rdi,%rdx)
  jmp 9f
2: # 0 to 3
  testl %edx, %edx
  je 9f
  cmpl $2, %edx
  jb 8f
  movzwl (%rsi), %eax
  movzbl -1(%rsi,%rdx), %ecx
  movw %ax, (%rdi)
  je 9f
  movb %cl, -1(%rdi,%rdx)
  jmp 9f
8:
  movzbl (%rsi), %eax
  movb %al, (%rdi)
  jmp 9f
3: # more than 8
  cmpq $16, %rdx
  ja 4f
  movq (%rsi), %rax
  movq -8(%rsi,%rdx), %rcx
  movq %rax, (%rdi)
  movq %rcx, -8(%rdi,%rdx)
  jmp 9f
4: # more than 16
  movups -16(%rsi,%rdx), %xmm2
  cmpq $32, %rdx
  ja 5f
  movups (%rsi), %xmm0
  movups %xmm0, (%rdi)
  movups %xmm2, -16(%rdi,%rdx)
  jmp 9f
5: # more than 32
  movups -32(%rsi,%rdx), %xmm3
6:
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  addq $32, %rsi
  addq $32, %rdi
  subq $32, %rdx
  cmpq $32, %rdx
  ja 6b
  movups %xmm3, -32(%rdi,%rdx)
  movups %xmm2, -16(%rdi,%rdx)
9:
  movb $0, %fs:(%r8)
  movl $1, %eax
  ret
fab_small_copy_fault:
  movb $0, %fs:(%r8)
  xorl %eax, %eax
  ret
  .cfi_endproc
  .size fab_small_copy, . - fab_small_copy
  .popsection
)");

extern "C" {
[[gnu::visibility("hidden")]] void fab_small_copy_begin() noexcept;  // labels: nobody calls them
[[gnu::visibility("hidden")]] void fab_small_copy_fault() noexcept;
}

#endif

namespace fab {

#if FAB_SMALL_COPY

bool leave_small_copy(void* context) noexcept {
  auto& next = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  const auto at = static_cast<std::uintptr_t>(next);
  const auto begin = reinterpret_cast<std::uintptr_t>(&fab_small_copy_begin);
  const auto behind = reinterpret_cast<std::uintptr_t>(&fab_small_copy_fault);
  if (at < begin || at >= behind) return false;
  next = static_cast<greg_t>(behind);
  return true;
}

bool in_small_copy() noexcept { return fab_in_small_copy; }

#else

bool leave_small_copy(void*) noexcept { return false; }
bool in_small_copy() noexcept { return false; }

#endif

}  // namespace fab
