package api

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/audittest"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
)

// object is a machine that serves its object on a socket of a test.
type object struct {
	enabled bool
	changed []string // "version by author"
	refusal error
	upgrade *cell.Cell[*api.UpgradeStatus]
	drain   *cell.Cell[*api.Drain]
	health  *cell.Cell[*api.HealthResponse]
	object  *cell.Cell[*api.ReportedObject]
	log     *AuditLog
	conn    *grpc.ClientConn
}

func newObject(t *testing.T) (*object, context.Context) {
	t.Helper()
	o := &object{
		enabled: true, object: cell.New[*api.ReportedObject](nil), log: recording(t, audit.DefaultSize), upgrade: cell.New(&api.UpgradeStatus{Running: "1.0.0"}), drain: cell.New[*api.Drain](nil),
		health: cell.New(&api.HealthResponse{Checks: []*api.HealthCheck{{Name: "services", Ok: true}, {Name: "kubelet", Detail: "not ready"}, {Name: "last"}}}),
	}
	server := NewObjectServer(ObjectDeps{
		Enabled: func() bool { return o.enabled },
		Object:  o.object,
		Release: func() buildinfo.Release { return buildinfo.Release{Version: "1.0.0", Kubernetes: "v1.37.2"} },
		Upgrade: cell.Map(o.upgrade, func(s *api.UpgradeStatus) *api.UpgradeStatus { return s }),
		Drain:   cell.Map(o.drain, func(d *api.Drain) *api.Drain { return d }),
		WatchHealth: func(ctx context.Context, each func(*api.HealthResponse) (bool, error)) error {
			for w := o.health.Watch(); ; {
				h, _, err := w.Next(ctx)
				if err != nil {
					return err
				}
				if _, err := each(h); err != nil {
					return err
				}
			}
		},
		ChangeRelease: func(_ context.Context, r *api.ChangeReleaseRequest, by string) error {
			o.changed = append(o.changed, r.Version+" by "+by)
			return o.refusal
		},
		Repair: func(_ context.Context, step, by string) error {
			o.changed = append(o.changed, step+" by "+by)
			return o.refusal
		},
	}, interceptorOf(o.log))
	socket := filepath.Join(t.TempDir(), "object.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	if o.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.conn.Close() })
	// The metadata claim another caller, which the server must ignore.
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), api.Caller{Subject: "CN=dora", Role: "reader"}.Metadata()), 20*time.Second)
	t.Cleanup(cancel)
	return o, ctx
}

// TestObjectRepairs checks that the audit log records a step of a repair with the author
// ObjectAuthor, and that the configuration can forbid steps.
func TestObjectRepairs(t *testing.T) {
	o, ctx := newObject(t)
	c := api.NewMachineObjectClient(o.conn)
	if _, err := c.Repair(ctx, &api.RepairRequest{Step: "Reboot"}); err != nil {
		t.Fatal(err)
	}
	o.refusal = status.Error(codes.FailedPrecondition, "reboot refused: another has the turn")
	if _, err := c.Repair(ctx, &api.RepairRequest{Step: "OtherSlot"}); status.Convert(err).Message() != "reboot refused: another has the turn" {
		t.Errorf("a refusal: %v", err)
	}
	o.enabled = false
	if _, err := c.Repair(ctx, &api.RepairRequest{Step: "Reboot"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "machineObjects") {
		t.Errorf("disabled: %v", err)
	}
	if got := strings.Join(o.changed, ", "); got != "Reboot by machine object, OtherSlot by machine object" {
		t.Errorf("steps: %s", got)
	}
	changes, _ := o.log.Records()
	found := false
	for _, e := range audittest.Entries(t, changes, "") {
		found = found || e.Subject == ObjectAuthor && e.Target == "step Reboot"
	}
	if !found {
		t.Error("the audit log has no entry of the step")
	}
}

// TestObjectChangesRelease checks that a change of the release is performed, that the audit log
// records it with the author ObjectAuthor even if it fails, and that the configuration can forbid
// changes.
func TestObjectChangesRelease(t *testing.T) {
	o, ctx := newObject(t)
	c := api.NewMachineObjectClient(o.conn)
	if _, err := c.ChangeRelease(ctx, &api.ChangeReleaseRequest{Version: "2.0.0"}); err != nil {
		t.Fatal(err)
	}
	o.refusal = status.Error(codes.FailedPrecondition, "upgrade refused: another has the turn")
	if _, err := c.ChangeRelease(ctx, &api.ChangeReleaseRequest{Version: "3.0.0"}); status.Convert(err).Message() != "upgrade refused: another has the turn" {
		t.Errorf("a refusal: %v", err)
	}
	if _, err := c.ChangeRelease(ctx, &api.ChangeReleaseRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a version: %v", err)
	}
	o.enabled = false
	if _, err := c.ChangeRelease(ctx, &api.ChangeReleaseRequest{Version: "4.0.0"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "machineObjects") {
		t.Errorf("disabled: %v", err)
	}
	if got := strings.Join(o.changed, ", "); got != "2.0.0 by machine object, 3.0.0 by machine object" {
		t.Errorf("changes: %s", got)
	}
	changes, refused := o.log.Records()
	for name, want := range map[string]string{"": "OK version 2.0.0", audit.Refused: "FailedPrecondition version 3.0.0"} {
		record := changes
		if name == audit.Refused {
			record = refused
		}
		found := false
		for _, e := range audittest.Entries(t, record, name) {
			if e.Subject != ObjectAuthor || e.Role != "admin" {
				t.Errorf("%s: author %q, role %q", name, e.Subject, e.Role)
			}
			found = found || e.Status+" "+e.Target == want
		}
		if !found {
			t.Errorf("record %s has no entry %q", name, want)
		}
	}
}

// TestObjectReport checks that Report stores the object, but only while the configuration enables
// the objects of machines.
func TestObjectReport(t *testing.T) {
	o, ctx := newObject(t)
	c := api.NewMachineObjectClient(o.conn)
	if _, err := c.Report(ctx, &api.ReportObjectRequest{Object: &api.ReportedObject{Wanted: "2.0.0"}}); err != nil {
		t.Fatal(err)
	}
	o.enabled = false
	if _, err := c.Report(ctx, &api.ReportObjectRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("disabled: %v", err)
	}
	if now, _ := o.object.Get(); now.GetWanted() != "2.0.0" {
		t.Errorf("stored: %v", now)
	}
}

// TestObjectServesNothingElse checks that the socket has no other service of the API.
func TestObjectServesNothingElse(t *testing.T) {
	o, ctx := newObject(t)
	if _, err := api.NewMachineClient(o.conn).Reset(ctx, &api.ResetRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("reset: %v", err)
	}
	if _, err := api.NewUpgradeClient(o.conn).Fetch(ctx, &api.FetchBundleRequest{Force: true}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a forced upgrade: %v", err)
	}
}

// TestObjectWatch checks that a client gets the state immediately and after each change, but not
// after progress of a transfer.
func TestObjectWatch(t *testing.T) {
	o, ctx := newObject(t)
	stream, err := api.NewMachineObjectClient(o.conn).Watch(ctx, &api.WatchObjectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		s, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join([]string{s.Version, s.Kubernetes, s.Upgrade.Phase, s.Problem}, "|"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if s.Upgrade.Done != 0 || s.Upgrade.Total != 0 {
			t.Errorf("the state contains the progress in bytes: %v", s.Upgrade)
		}
	}
	next("1.0.0|v1.37.2||kubelet: not ready")
	o.upgrade.Set(&api.UpgradeStatus{Running: "1.0.0", Phase: "writing", Done: 1, Total: 2})
	next("1.0.0|v1.37.2|writing|kubelet: not ready")
	o.upgrade.Set(&api.UpgradeStatus{Running: "1.0.0", Phase: "writing", Done: 2, Total: 2})
	o.health.Set(&api.HealthResponse{Checks: []*api.HealthCheck{{Name: "kubelet", Ok: true}}})
	next("1.0.0|v1.37.2|writing|")
	o.enabled = false
	disabled, err := api.NewMachineObjectClient(o.conn).Watch(ctx, &api.WatchObjectRequest{})
	if err == nil {
		_, err = disabled.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("disabled: %v", err)
	}
}
