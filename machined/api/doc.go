// Package api implements the gRPC services of the management API; each service has its file. A
// method checks the request, calls the package that does the work, and translates the result and
// the error. apid has authenticated and authorized the caller (package callerid).
//
// # Out of scope
//
// The package opens no socket: machined serves the services for apid; only root and apid can
// connect. machined also writes the audit log, in an interceptor, and limits the messages and
// streams. The package holds no state of the machine and makes no decision about it.
package api
