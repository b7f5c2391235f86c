// Package limits bounds the operations of callers: concurrent operations in total and per caller
// (Limiter), operations per time and key (Rates), concurrent operations of a kind (Acquire,
// TryAcquire), and the time of an operation (Within).
package limits
