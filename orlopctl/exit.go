package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// The exit statuses. exitHelp documents them in --help.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitUnhealthy   = 4
)

const exitHelp = `Exit status:
  0  done
  1  it failed: the message says why
  2  the command line or the configuration is wrong; nothing was changed
  3  the machine cannot be reached, is not the one expected, or does not let you in
  4  it did not become healthy, or did not answer, in time
With --nodes it is that of the first machine that failed.`

// exitError is an error with an exit status and a hint.
type exitError struct {
	code int
	err  error
	hint string // one sentence without a full stop; may be empty
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef returns an error of the command line.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// withHint adds a hint to an error that has no hint yet.
func withHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	code, known := exitCode(err)
	if known != "" {
		hint = known
	}
	return &exitError{code: code, err: err, hint: hint}
}

// report prints an error for a person and returns the exit status.
func (ios *streams) report(err error) int {
	if err == nil {
		return exitOK
	}
	code, hint := exitCode(err)
	for _, problem := range problemsOf(err) {
		ios.errorln(problem.String())
	}
	prefix := "orlopctl: "
	if ios.node != "" {
		prefix = "" // each line begins with the machine
	}
	ios.errorln(prefix + cleanLines(message(err)))
	if hint != "" {
		ios.errorln("hint: " + hint)
	}
	return code
}

// exitCode returns the exit status for an error, and a hint.
func exitCode(err error) (code int, hint string) {
	var exit *exitError
	var problems config.Problems
	switch {
	case errors.As(err, &exit):
		return exit.code, exit.hint
	case errors.As(err, &problems):
		return exitUsage, ""
	case errors.Is(err, client.ErrRefused):
		return exitUnreachable, "the machine accepts only certificates of operator CAs that it trusts; check --cert and --key, or the context"
	case errors.Is(err, client.ErrUntrusted):
		return exitUnreachable, "check the address; if the machine was reset or is new, read its fingerprint from its console and pass --fingerprint"
	case errors.Is(err, client.ErrUnreachable):
		return exitUnreachable, "check that the machine is up and that the address is right (port 50000)"
	}
	s, ok := statusOf(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return exitUnhealthy, "allow more time with --timeout"
		}
		return exitFailure, ""
	}
	switch s.Code() {
	case codes.InvalidArgument:
		return exitUsage, ""
	case codes.Unauthenticated:
		return exitUnreachable, "make a new client certificate with `orlopctl gen client`"
	case codes.PermissionDenied:
		return exitUnreachable, "use a certificate with that role: an admin can let the machine issue it (`orlopctl trust issue --role`), or issue it by the operator CA (`orlopctl gen client --role`)"
	case codes.Unavailable:
		return exitUnreachable, "the machine may be going down or starting; `orlopctl health` waits for it"
	case codes.DeadlineExceeded:
		return exitUnhealthy, "allow more time with --timeout"
	case codes.NotFound:
		return exitFailure, ""
	case codes.Unimplemented:
		return exitFailure, "compare `orlopctl version` of the tool and of the machine"
	}
	return exitFailure, ""
}

// message returns an error as a sentence, without gRPC's prefix.
func message(err error) string {
	var problems config.Problems
	if errors.As(err, &problems) {
		return fmt.Sprintf("the configuration is not valid: %s; nothing was changed", count(len(problems), "problem"))
	}
	if s, ok := statusOf(err); ok {
		text := s.Message()
		if s.Code() == codes.DeadlineExceeded {
			text = "the time is up" // one text for all deadline errors of client and server
		}
		if n := len(problemsOf(err)); n > 0 {
			return fmt.Sprintf("the machine rejects the configuration: %s; nothing was changed", count(n, "problem"))
		}
		if prefix, _, found := strings.Cut(err.Error(), "rpc error: "); found {
			text = prefix + text
		}
		return text
	}
	return err.Error()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// statusOf finds the status of a gRPC call in an error.
func statusOf(err error) (*status.Status, bool) {
	var with interface{ GRPCStatus() *status.Status }
	if errors.As(err, &with) {
		return with.GRPCStatus(), true
	}
	return nil, false
}

// problemsOf lists the problems in an error, from this tool or from the machine.
func problemsOf(err error) []config.Problem {
	var problems config.Problems
	if errors.As(err, &problems) {
		return problems
	}
	s, ok := statusOf(err)
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
