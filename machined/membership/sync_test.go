package membership

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestRecordRemoved checks by which errors a worker recognizes that it was removed: by the
// rejection of its present certificate, in a call or at the connection. Other errors do not mean a
// removal.
func TestRecordRemoved(t *testing.T) {
	ca, err := pki.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func() *pki.Leaf {
		l, err := ca.Issue(pki.Spec{CN: "b", Usage: pki.Both, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	held, before := issue(), issue()
	refused := errors.Join(failedCall{fmt.Errorf("machine 10.0.0.11: cannot connect: %w: %w", client.ErrRefused, client.ErrRevoked), held.Cert.Raw}, errors.New("and more"))
	late := failedCall{fmt.Errorf("machine 10.0.0.11: %s at 2026-05-04T03:02:01Z", trust.RevokedPrefix), before.Cert.Raw}
	for what, c := range map[string]struct {
		refused error
		removed bool
	}{
		"present certificate rejected": {refused, true},
		"earlier certificate rejected": {late, false},
		"rejected in a call":           {fmt.Errorf("machine 10.0.0.11: %s at 2026-05-04T03:02:01Z", trust.RevokedPrefix), true},
		"rejected at the connection":   {fmt.Errorf("machine 10.0.0.11: cannot connect: %w: %w", client.ErrRefused, client.ErrRevoked), true},
		"server not authenticated":     {fmt.Errorf("machine 10.0.0.11: cannot connect: %w: x509: certificate signed by unknown authority (%s)", client.ErrUntrusted, trust.RevokedPrefix), false},
		"no answer":                    {fmt.Errorf("machine 10.0.0.11: cannot connect: %w", client.ErrUnreachable), false},
		"revocations lost":             {fmt.Errorf("machine 10.0.0.11: %w", trust.ErrRevocationsLost), false},
		"no error":                     {nil, false},
	} {
		w := &Worker{State: cell.New(State{Certs: Certificates{Machine: held}})}
		w.recordRemoved(c.refused)
		if s, _ := w.State.Get(); s.Removed != c.removed {
			t.Errorf("%s: removed %v, want %v", what, s.Removed, c.removed)
		}
		w.clearRemoved()
		if s, _ := w.State.Get(); s.Removed || s.Problem != "" {
			t.Errorf("%s: after clearRemoved, the worker is still recorded as removed: %q", what, s.Problem)
		}
	}
}

// TestAllRejected checks that allRejected returns true only if all control-plane machines have
// rejected the ticket, and false if a machine has not answered or is busy.
func TestAllRejected(t *testing.T) {
	used := answerError{"10.0.0.11", status.Error(codes.FailedPrecondition, "another machine has used it")}
	busy := answerError{"10.0.0.12", status.Error(codes.ResourceExhausted, "too many")}
	revoked := fmt.Errorf("machine 10.0.0.12: cannot connect: %w: %w", client.ErrRefused, client.ErrRevoked)
	for _, c := range []struct {
		err  error
		want bool
	}{
		{client.Failures{used}, true}, {client.Failures{used, revoked}, true}, {client.Failures{used, busy}, false}, {client.Failures{busy}, false},
		{client.Failures{fmt.Errorf("machine 10.0.0.12: cannot connect: %w", client.ErrUnreachable)}, false}, {errors.New("its key cannot be stored"), false},
	} {
		if allRejected(c.err) != c.want {
			t.Errorf("%v: want %v", c.err, c.want)
		}
	}
	if text := (client.Failures{used, busy}).Error(); text != "10.0.0.11: another machine has used it; 10.0.0.12: too many" {
		t.Error(text)
	}
}
