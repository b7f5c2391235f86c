// Package api implements the gRPC services of the management API; each service has its file. A
// method checks the request, calls the package that does the work, and translates the result and
// the error. Before the call, package apid has authenticated and authorized the caller.
//
// A server (server_linux.go) serves the services on a Unix socket, to which only root and apid can
// connect. Its interceptor (interceptor.go) records the calls in the audit log (auditlog.go).
//
// # Out of scope
//
// The package holds no state of the machine and makes no decision about the machine.
package api
