// Package limits bounds the operations of callers: concurrent operations in total and per caller
// (Limiter), operations per time and key (Rates) or per address and network (Callers), concurrent
// operations of a kind (Acquire, TryAcquire), the time of an operation (Within), and the time of a
// read that can hang (Read).
package limits
