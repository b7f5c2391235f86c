package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/pairing"
)

// TestGuard: a call that changes something is on record with who made it and what came of it; one that looks is not; and before there
// is an owner none gets through but pairing.
func TestGuard(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{audit: l, desk: newDesk(), refusals: newRefusals()}
	g := guard{m: m, audited: apid.Mutates()}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(
		apid.MetadataSubject, "CN=admin,O=orlop:admin", apid.MetadataSerial, "1f", apid.MetadataRole, "admin", apid.MetadataPeer, "10.0.0.1:4711"))
	called := 0
	call := func(ctx context.Context, method string, err error) error {
		return g.pass(ctx, method, func() (string, error) { called++; return "", err })
	}
	refused := status.Error(codes.FailedPrecondition, "not now")
	for _, c := range []struct {
		method string
		err    error
	}{{api.Machine_Reboot_FullMethodName, nil}, {api.Config_Apply_FullMethodName, refused}, {api.Machine_Version_FullMethodName, nil}, {api.Cluster_Kubeconfig_FullMethodName, nil}} {
		if err := call(ctx, c.method, c.err); err != c.err {
			t.Errorf("%s: %v", c.method, err)
		}
	}
	if _, err := (doorAPI{m: m}).Refused(t.Context(), &api.RefusedRequest{Subject: "CN=eye", Role: "reader", Method: api.Machine_Reset_FullMethodName, Outcome: "PermissionDenied"}); err != nil {
		t.Error(err)
	}
	m.desk.code.Set(pairing.NewCode())
	if err := call(ctx, api.Machine_Version_FullMethodName, nil); status.Code(err) != codes.FailedPrecondition || called != 4 {
		t.Errorf("a call to a machine of nobody: %v, %d calls came through", err, called)
	}
	if err := call(ctx, api.Door_Pair_FullMethodName, nil); err != nil || called != 5 {
		t.Errorf("pairing with a machine of nobody: %v, %d calls came through", err, called)
	}
	var got []string
	err = l.Read(0, func(_ uint64, line []byte) error {
		var e audit.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		got = append(got, strings.Join([]string{e.Subject, e.Role, e.Method, e.Outcome, e.Reason}, " "))
		return nil
	})
	want := []string{
		"CN=admin,O=orlop:admin admin /orlop.v1alpha1.Machine/Reboot OK ",
		"CN=admin,O=orlop:admin admin /orlop.v1alpha1.Config/Apply FailedPrecondition not now",
		"CN=admin,O=orlop:admin admin /orlop.v1alpha1.Cluster/Kubeconfig OK ",
		"CN=eye reader /orlop.v1alpha1.Machine/Reset PermissionDenied ",
	}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%v\n%s", err, strings.Join(got, "\n"))
	}
}

// TestRecordIsBounded: who may only look has not more than so many calls recorded, of which each is short, and an operator has all.
func TestRecordIsBounded(t *testing.T) {
	l, err := audit.Open(t.TempDir(), audit.DefaultSize, audit.DefaultFiles)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{audit: l, desk: newDesk(), refusals: newRefusals()}
	g := guard{m: m, audited: apid.Mutates()}
	for role, most := range map[string]int{"operator": 200, "reader": 62} {
		for i := range 200 { // by another certificate each time
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(apid.MetadataSerial, fmt.Sprint(i), apid.MetadataSubject, "CN="+role, apid.MetadataRole, role))
			_ = g.pass(ctx, api.Machine_ListFiles_FullMethodName, func() (string, error) {
				return "", status.Error(codes.InvalidArgument, strings.Repeat("<\x1b", 1<<10))
			})
		}
		lines := 0
		err := l.Read(0, func(_ uint64, line []byte) error {
			var e audit.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			if e.Role == role {
				lines++
			}
			if len(e.Reason) > maxReason+100 || strings.Contains(e.Reason, "\x1b") || len(line) > 8*maxReason {
				t.Fatalf("%d bytes of reason, %d in all", len(e.Reason), len(line))
			}
			return nil
		})
		if err != nil || lines < 60 || lines > most {
			t.Errorf("%s: %d calls are recorded, %v", role, lines, err)
		}
	}
}

// TestRefusalsAreBounded: who is refused again and again does not fill the record, and is counted.
func TestRefusalsAreBounded(t *testing.T) {
	r := newRefusals()
	recorded := 0
	for range 500 {
		if ok, before := r.next("1f"); ok {
			recorded++
			if before != 0 {
				t.Errorf("%d were left out before one of the first", before)
			}
		}
	}
	if recorded < 60 || recorded > 62 {
		t.Errorf("%d of 500 recorded", recorded)
	}
	if ok, _ := r.next("2e"); !ok {
		t.Error("another caller is not recorded")
	}
	r.by["1f"] = nil // as after a while
	if ok, before := r.next("1f"); !ok || before != 500-recorded {
		t.Errorf("recorded %t, %d before, want %d", ok, before, 500-recorded)
	}
	for i := range 3 * triesTracked {
		r.next(fmt.Sprint("many ", i))
	}
	if len(r.left) > triesTracked || len(r.by) > triesTracked {
		t.Errorf("it remembers %d and %d callers", len(r.left), len(r.by))
	}
}
