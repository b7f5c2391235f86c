/*
 * The process that holds a pod's namespaces. It waits for signals, reaps the children that end up with it, and ends
 * on SIGTERM or SIGINT. It uses no C library, so that a pod costs a few pages only.
 *
 * The signals are blocked and waited for: no handler is needed, and a blocked signal reaches the first process of a
 * PID namespace too (the kernel drops signals without a handler there, but never blocked ones).
 */
#include <asm/unistd.h>

enum { SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, SIG_BLOCK = 0, WNOHANG = 1 };

static long call(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

void _start(void)
{
	unsigned long set = 1ul << (SIGINT - 1) | 1ul << (SIGTERM - 1) | 1ul << (SIGCHLD - 1);

	call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof set);
	for (;;) {
		long signal = call(__NR_rt_sigtimedwait, (long)&set, 0, 0, sizeof set);

		if (signal == SIGINT || signal == SIGTERM)
			call(__NR_exit_group, 0, 0, 0, 0);
		while (call(__NR_wait4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
