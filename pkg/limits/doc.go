// Package limits bounds the operations of callers:
//   - Limiter: concurrent operations, in total and per caller
//   - Rates: operations per time and key
//   - Callers: operations per time, by the address and the network of the caller
//   - Acquire and TryAcquire: concurrent operations of a kind
//   - Within: the time of an operation
//   - Read: the time of a read that can hang
package limits
