// Package exit turns errors into the exit statuses of orlopctl, with messages and hints for
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

// The exit statuses. Help documents them in --help.
const (
	OK          = 0
	Failure     = 1
	Usage       = 2
	Unreachable = 3
	Unhealthy   = 4
)

// Help documents the exit statuses in --help.
const Help = `Exit status:
  0  done
  1  it failed: the message says why
  2  the command line or the configuration is wrong; nothing was changed
  3  the machine cannot be reached, is not the one expected, or does not let you in
  4  it did not become healthy, or did not answer, in time
With --nodes it is that of the first machine that failed.`

// Error is an error with an exit status and a hint.
type Error struct {
	Code int
	Err  error
	Hint string // one sentence without a full stop; may be empty
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error of the command line.
func Usagef(format string, args ...any) error {
	return &Error{Code: Usage, Err: fmt.Errorf(format, args...)}
}

// WithHint adds a hint to an error that has no hint yet.
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

// Code returns the exit status for an error, and a hint.
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

// Message returns an error as a sentence, without gRPC's prefix.
func Message(err error) string {
	var problems config.Problems
	if errors.As(err, &problems) {
		return fmt.Sprintf("the configuration is not valid: %s; nothing was changed", format.Count(len(problems), "problem"))
	}
	if s, ok := StatusOf(err); ok {
		text := s.Message()
		if s.Code() == codes.DeadlineExceeded {
			text = "the time is up" // one text for all deadline errors of client and server
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

// StatusOf finds the status of a gRPC call in an error.
func StatusOf(err error) (*status.Status, bool) {
	var with interface{ GRPCStatus() *status.Status }
	if errors.As(err, &with) {
		return with.GRPCStatus(), true
	}
	return nil, false
}

// ProblemsOf lists the problems in an error, from this tool or from the machine.
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

// IsTemporary reports whether an error may be temporary while a machine boots or reboots.
func IsTemporary(err error) bool {
	if err == nil || errors.Is(err, client.ErrUnreachable) {
		return true
	}
	s, ok := StatusOf(err)
	return ok && s.Code() == codes.Unavailable
}

// TimedOut reports whether a call ended by its deadline. The machine knows the deadline too, and
// its answer may arrive a moment before the local deadline.
func TimedOut(err error) bool {
	s, ok := StatusOf(err)
	return ok && s.Code() == codes.DeadlineExceeded
}
