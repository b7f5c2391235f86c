// Package exit converts errors to the exit statuses of orlopctl, and to messages and hints for
// operators.
package exit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// These are the exit statuses. Help describes them.
const (
	OK          = 0
	Failure     = 1
	Usage       = 2
	Unreachable = 3
	Unhealthy   = 4
)

// Help is the part of --help about the exit statuses.
const Help = `Exit status:
  0  the command succeeded
  1  the command failed: the message says why
  2  the command line or the configuration is wrong; nothing was changed
  3  the machine cannot be reached, is not the expected machine, or does not admit you
  4  the machine or the cluster did not become healthy in time, or did not answer in time
With --nodes, the exit status is that of the first machine that failed.`

// Error is an error with an exit status and a hint.
type Error struct {
	Code int
	Err  error
	Hint string // a sentence without a full stop; may be empty
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error with exit status Usage.
func Usagef(format string, args ...any) error {
	return &Error{Code: Usage, Err: fmt.Errorf(format, args...)}
}

// WithHint adds a hint to an error. If the error already has a hint, that hint is preserved.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	code, known := Code(err)
	if known != "" {
		hint = known
	}
	return &Error{Code: code, Err: err, Hint: hint}
}

// Code returns the exit status and the hint for an error. The hint may be "".
func Code(err error) (code int, hint string) {
	var exit *Error
	var problems config.Problems
	switch {
	case errors.As(err, &exit):
		return exit.Code, exit.Hint
	case errors.As(err, &problems):
		return Usage, ""
	case errors.Is(err, client.ErrRefused):
		return Unreachable, "the machine accepts only certificates of operator CAs that it trusts; check --cert and --key, or the context"
	case errors.Is(err, client.ErrUntrusted):
		return Unreachable, "check the address; if the machine was reset or is new, read its fingerprint from its console and pass --fingerprint"
	case errors.Is(err, client.ErrUnreachable):
		return Unreachable, "check that the machine is up and that the address is right (port 50000)"
	}
	s, ok := StatusOf(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return Unhealthy, "allow more time with --timeout"
		}
		return Failure, ""
	}
	switch s.Code() {
	case codes.InvalidArgument:
		return Usage, ""
	case codes.Unauthenticated:
		return Unreachable, "make a new client certificate with `orlopctl gen client`"
	case codes.PermissionDenied:
		return Unreachable, "use a certificate with that role: an admin can let the machine issue it (`orlopctl trust issue --role`), or issue it by the operator CA (`orlopctl gen client --role`)"
	case codes.Unavailable:
		return Unreachable, "the machine may be shutting down or starting; `orlopctl health` waits for it"
	case codes.DeadlineExceeded:
		return Unhealthy, "allow more time with --timeout"
	case codes.NotFound:
		return Failure, ""
	case codes.Unimplemented:
		return Failure, "compare `orlopctl version` of the tool and of the machine"
	}
	return Failure, ""
}

// Message returns the text of an error for the operator, without gRPC's prefix.
func Message(err error) string {
	var problems config.Problems
	if errors.As(err, &problems) {
		return fmt.Sprintf("the configuration is not valid: %s; nothing was changed", format.Count(len(problems), "problem"))
	}
	if s, ok := StatusOf(err); ok {
		text := s.Message()
		if s.Code() == codes.DeadlineExceeded {
			text = "the time is up" // the same text for all deadline errors of client and server
		}
		if n := len(ProblemsOf(err)); n > 0 {
			return fmt.Sprintf("the machine rejects the configuration: %s; nothing was changed", format.Count(n, "problem"))
		}
		if prefix, _, found := strings.Cut(err.Error(), "rpc error: "); found {
			text = prefix + text
		}
		return text
	}
	return err.Error()
}

// StatusOf returns the status of the gRPC call in an error. The second result is false if the error
// has none.
func StatusOf(err error) (*status.Status, bool) {
	var with interface{ GRPCStatus() *status.Status }
	if errors.As(err, &with) {
		return with.GRPCStatus(), true
	}
	return nil, false
}

// ProblemsOf returns the problems of a configuration that an error contains. This tool or the
// machine has found them.
func ProblemsOf(err error) []config.Problem {
	var problems config.Problems
	if errors.As(err, &problems) {
		return problems
	}
	s, ok := StatusOf(err)
	if !ok {
		return nil
	}
	for _, detail := range s.Details() {
		if p, ok := detail.(*api.Problem); ok {
			problems = append(problems, config.Problem{File: p.File, Line: int(p.Line), Field: p.Field, Reason: p.Reason, Expected: p.Expected, Hint: p.Hint})
		}
	}
	return problems
}

// IsTemporary reports whether a machine that boots or reboots can cause this error. It returns true
// for nil.
func IsTemporary(err error) bool {
	if err == nil || errors.Is(err, client.ErrUnreachable) {
		return true
	}
	s, ok := StatusOf(err)
	return ok && s.Code() == codes.Unavailable
}

// TimedOut reports whether the deadline of a call has expired. The result can be true although the
// local context has not expired yet: the machine enforces the same deadline, and its answer can
// arrive first.
func TimedOut(err error) bool {
	s, ok := StatusOf(err)
	return ok && s.Code() == codes.DeadlineExceeded
}
