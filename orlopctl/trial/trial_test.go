package trial

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestConfirmElsewhere checks that Run confirms a trial at another address of the machine if the
// usual address does not answer. If no address answers, Run fails.
func TestConfirmElsewhere(t *testing.T) {
	operator, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	fake := machinetest.New(t, operator.CertPEM())
	leaf, err := operator.Issue(pki.Spec{CN: "admin", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := gone.Addr().String()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	usual := client.Endpoint{Address: address, ServerName: "m1", Fingerprint: fake.Fingerprint,
		Cert: tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key, Leaf: leaf.Cert}}
	dials := 0
	c := &Confirmation{Endpoints: EndpointsOf(usual, []string{fake.Address}), BeforeDial: func() { dials++ }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Run(ctx); err != nil || c.At.Address != fake.Address || dials != 2 {
		t.Errorf("Run returns %v and has confirmed at %s, with %d connections, want 2", err, c.At.Address, dials)
	}
	lost := &Confirmation{Endpoints: EndpointsOf(usual, nil)}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = lost.Run(soon)
	if code, _ := exit.Code(NotConfirmed(err, 30*time.Second)); err == nil || code != exit.Unreachable {
		t.Errorf("Run for an unreachable machine: %v, exit status %d", err, code)
	}
}

// TestNotConfirmed checks that the error about a failed confirmation says that the machine reverts,
// and when. If the machine has already reverted, the error does not say so. It also checks after
// which errors of a call the confirmation is repeated.
func TestNotConfirmed(t *testing.T) {
	for left, want := range map[time.Duration]string{30 * time.Second: "to the previous configuration in 30s (at ", 0: "to the previous configuration now (at ", -time.Second: "to the previous configuration now (at "} {
		if got := NotConfirmed(client.ErrUnreachable, left).Error(); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", left, got, want)
		}
	}
	got := notConfirmedAfterBoot(client.ErrUnreachable, 5*time.Minute)
	if code, _ := exit.Code(got); !strings.Contains(got.Error(), "the machine reverts to the previous configuration 5m0s after its boot, or at its next boot, without your help") || code != exit.Unreachable {
		t.Errorf("after a boot: %v, exit status %d", got, code)
	}
	gone := status.Error(codes.FailedPrecondition, "none is on trial")
	for _, got := range []error{notConfirmedAfterBoot(gone, time.Minute), NotConfirmed(gone, time.Minute)} {
		if code, _ := exit.Code(got); code != exit.Failure || strings.Contains(got.Error(), "reverts") {
			t.Errorf("after the machine has reverted: %v, exit status %d", got, code)
		}
	}
	for code, want := range map[codes.Code]bool{codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Unauthenticated: true, codes.FailedPrecondition: false, codes.PermissionDenied: false, codes.Unimplemented: false} {
		if got := isTemporaryOrUnauthorized(status.Error(code, "x")); got != want {
			t.Errorf("%v: the confirmation is repeated: %v", code, got)
		}
	}
}

// TestNeeded checks which responses of Apply require a confirmation: those with a trial that runs
// or that begins with the reboot. A reboot without a trial requires none. It also checks for which
// modes of a call the tool itself confirms the trial.
func TestNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		answer *api.ApplyResponse
		want   bool
	}{
		"no trial":                     {&api.ApplyResponse{}, false},
		"on trial":                     {&api.ApplyResponse{TrialDeadline: timestamppb.Now(), TrialDuration: durationpb.New(time.Minute)}, true},
		"a reboot":                     {&api.ApplyResponse{Reboot: true}, false},
		"a reboot that begins a trial": {&api.ApplyResponse{Reboot: true, TrialDuration: durationpb.New(time.Minute)}, true},
	} {
		if got := Needed(c.answer); got != c.want {
			t.Errorf("%s: a confirmation is needed: %v", name, got)
		}
	}
	for mode, want := range map[api.ApplyRequest_Mode]bool{
		api.ApplyRequest_MODE_AUTO: true, api.ApplyRequest_MODE_NO_REBOOT: true, api.ApplyRequest_MODE_REBOOT: true, api.ApplyRequest_MODE_UNSPECIFIED: true,
		api.ApplyRequest_MODE_STAGED: false, api.ApplyRequest_MODE_TRY: false, api.ApplyRequest_MODE_DRY_RUN: false,
	} {
		if got := IsAutomatic(mode); got != want {
			t.Errorf("%v: confirmed automatically: %v", mode, got)
		}
	}
}
