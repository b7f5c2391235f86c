// Package limits bounds the operations of callers: concurrent operations in total and per caller
// (Limiter), operations per time and key (Rates), and concurrent operations of a kind (Acquire).
package limits
