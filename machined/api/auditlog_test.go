package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/audittest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
)

// recording returns an audit log with records in a directory of the test. size is the largest size
// of a file of a record, in bytes.
func recording(t *testing.T, size int) *AuditLog {
	t.Helper()
	l := NewAuditLog(AuditLogDeps{Event: func(kind, message string) {}, Console: func(string) {}})
	dir := t.TempDir()
	var err, err2 error
	l.changes, err = audit.Open(filepath.Join(dir, "changes"), size, 3)
	l.refused, err2 = audit.OpenNamed(filepath.Join(dir, "refused"), audit.Refused, size, 3)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	l.inProgress.Dir = filepath.Join(dir, "going")
	// The default is too short for the disk of a busy computer.
	l.timeout = time.Minute
	return l
}

// interceptorOf returns the interceptor of a claimed machine.
func interceptorOf(l *AuditLog) Interceptor {
	return Interceptor{AuditLog: l, Audited: apid.Mutates(), RejectUnclaimed: func(string) error { return nil }}
}

// fakeStream is a stream with only a context.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

// callBy returns the context of a call by a client with this subject and role.
func callBy(t *testing.T, subject, role string) context.Context {
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs(
		api.MetadataSubject, subject, api.MetadataSerial, "1f", api.MetadataRole, role, api.MetadataPeer, "10.0.0.1:4711"))
}

// brief formats entries as "role method outcome reason".
func brief(list []audit.Entry) string {
	var out []string
	for _, e := range list {
		out = append(out, strings.TrimSpace(strings.Join([]string{e.Role, strings.TrimPrefix(e.Method, "/orlop.v1alpha1."), e.Status, e.Reason}, " ")))
	}
	return strings.Join(out, "\n")
}

// do makes a unary call with a handler that returns err.
func (g Interceptor) do(ctx context.Context, method string, err error) error {
	_, got := g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, err })
	return got
}

// TestInterceptor checks that a call that changes data is recorded with its caller and result, and
// a read-only call is not; that rejected calls are in a record of their own; and that an unclaimed
// machine admits only pairing.
func TestInterceptor(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	ctx := callBy(t, "CN=admin,O=orlop:admin", "admin")
	refused := status.Error(codes.FailedPrecondition, "not now")
	for _, c := range []struct {
		method string
		err    error
	}{{api.Machine_Reboot_FullMethodName, nil}, {api.Config_Apply_FullMethodName, refused}, {api.Machine_Version_FullMethodName, nil}, {api.Cluster_Kubeconfig_FullMethodName, nil}} {
		if err := g.do(ctx, c.method, c.err); err != c.err {
			t.Errorf("%s: %v", c.method, err)
		}
	}
	l.recordRefusal(&api.RecordRefusalRequest{Subject: "CN=eye", Role: "reader", Method: api.Machine_Reset_FullMethodName, Outcome: "PermissionDenied"})
	pairing := ownership.New(ownership.Deps{Unreadable: func(*config.Config) bool { return false }})
	pairing.Update(nil, nil)
	g.RejectUnclaimed = pairing.RejectUnclaimed
	if err := g.do(ctx, api.Machine_Version_FullMethodName, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a call to an unclaimed machine: %v", err)
	}
	if err := g.do(ctx, api.ApidInternal_Pair_FullMethodName, nil); err != nil {
		t.Errorf("pairing with an unclaimed machine: %v", err)
	}
	changes := audittest.Entries(t, l.changes, "")
	if got, want := brief(changes), "admin Machine/Reboot OK\nadmin Cluster/Kubeconfig OK"; got != want || changes[0].Subject != "CN=admin,O=orlop:admin" || changes[0].ID == "" {
		t.Errorf("the record of changes has %s", got)
	}
	if got, want := brief(audittest.Entries(t, l.refused, audit.Refused)), "admin Config/Apply FailedPrecondition not now\nreader Machine/Reset PermissionDenied"; got != want {
		t.Errorf("the record of rejected calls has %s", got)
	}
	if left, err := l.inProgress.Unfinished(); err != nil || len(left) != 0 {
		t.Errorf("the journal has unfinished calls: %v, %v", left, err)
	}
}

// TestStateHangs checks that a call ends in time while STATE does not answer: a call that changes
// data is rejected. A reboot is permitted, and its end is recorded when STATE answers again.
func TestStateHangs(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	ctx := callBy(t, "CN=admin,O=orlop:admin", "admin")
	if err := g.do(ctx, api.Config_Apply_FullMethodName, nil); err != nil {
		t.Fatal(err)
	}
	l.timeout = 2 * time.Second
	// A FIFO without a reader blocks each write.
	files, err := filepath.Glob(filepath.Join(filepath.Dir(l.inProgress.Dir), "changes", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	file, aside := files[0], filepath.Join(t.TempDir(), "aside")
	if err := errors.Join(os.Rename(file, aside), unix.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, c := range []struct {
		method string
		code   codes.Code
	}{{api.Machine_Reboot_FullMethodName, codes.OK}, {api.Config_Apply_FullMethodName, codes.Unavailable}, {api.Machine_Reboot_FullMethodName, codes.OK}} {
		if err := g.do(ctx, c.method, nil); status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), "nothing was changed: cannot write the audit log (audit: STATE does not answer: unknown: ") {
			t.Errorf("%s: %v, want %v", c.method, err, c.code)
		}
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("the calls took %v", took)
	}
	reader, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.flush(); err == nil { // flush waits for the write that hangs
		t.Error("flush succeeded although the file of the record is a FIFO")
	}
	if err := errors.Join(reader.Close(), os.Rename(aside, file), l.flush()); err != nil {
		t.Fatal(err)
	}
	const want = "admin Config/Apply OK\nadmin Machine/Reboot OK\nadmin Machine/Reboot OK"
	if got := brief(audittest.Entries(t, l.changes, "")); got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
	if left, err := l.inProgress.Unfinished(); err != nil || len(left) != 0 {
		t.Errorf("the journal has unfinished calls: %v, %v", left, err)
	}
}

// TestLateStart checks that the journal does not retain the start of a call if STATE stores the
// start too late. The call was rejected, or it has run and is in the record of changes.
func TestLateStart(t *testing.T) {
	for _, c := range []struct {
		method   string
		code     codes.Code
		recorded string
	}{{api.Config_Apply_FullMethodName, codes.Unavailable, ""}, {api.Machine_Reboot_FullMethodName, codes.OK, "admin Machine/Reboot OK"}} {
		l := recording(t, audit.DefaultSize)
		l.timeout = 10 * time.Millisecond
		l.writeMu.Lock() // STATE does not answer
		if err := interceptorOf(l).do(callBy(t, "CN=admin", "admin"), c.method, nil); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", c.method, err, c.code)
		}
		l.writeMu.Unlock()
		l.timeout = 20 * time.Second
		for deadline := time.Now().Add(l.timeout); l.within(func(context.Context) error { return nil }) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the write of the start does not end", c.method)
			}
		}
		if got := brief(audittest.Entries(t, l.changes, "")); got != c.recorded {
			t.Errorf("%s: recorded %q, want %q", c.method, got, c.recorded)
		}
		if left, err := l.inProgress.Unfinished(); err != nil || len(left) != 0 {
			t.Errorf("%s: the journal has unfinished calls: %v, %v", c.method, left, err)
		}
	}
}

// TestPlainStatus checks that an answer has the code, the details and the message of a status that
// an error wraps, joins or quotes, and that other errors stay as they are.
func TestPlainStatus(t *testing.T) {
	g := interceptorOf(recording(t, audit.DefaultSize))
	ctx := callBy(t, "CN=admin,O=orlop:admin", "admin")
	inner := status.Error(codes.NotFound, "it does not exist")
	detailed, err := status.New(codes.InvalidArgument, "it is invalid").WithDetails(&api.Problem{Line: 3})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		says string
	}{
		"a status":           {inner, codes.NotFound, "it does not exist"},
		"wrapped":            {fmt.Errorf("object: cannot read: %w", inner), codes.NotFound, "object: cannot read: it does not exist"},
		"joined":             {errors.Join(inner, errors.New("cannot close")), codes.NotFound, "it does not exist\ncannot close"},
		"joined to a status": {errors.Join(inner, status.Error(codes.Unavailable, "cannot close")), codes.NotFound, "it does not exist\ncannot close"},
		"quoted":             {status.Errorf(codes.Internal, "cannot read: %v", inner), codes.Internal, "cannot read: it does not exist"},
		"quoted in an error": {fmt.Errorf("cannot read: %v", inner), codes.Unknown, "cannot read: it does not exist"},
		"wrapped, detailed":  {fmt.Errorf("document: %w", detailed.Err()), codes.InvalidArgument, "document: it is invalid"},
		"another error":      {io.ErrUnexpectedEOF, codes.Unknown, "unexpected EOF"},
		"no error":           {nil, codes.OK, ""},
	} {
		for _, method := range []string{api.Machine_Version_FullMethodName, api.Machine_Reboot_FullMethodName} {
			got := status.Convert(g.do(ctx, method, c.err))
			if got.Code() != c.code || got.Message() != c.says || len(got.Details()) != len(status.Convert(c.err).Details()) {
				t.Errorf("%s: %v with details %v; want %v, %s", name, got, got.Details(), c.code, c.says)
			}
		}
	}
}

// TestRefusedPushOutNothing checks that rejected, canceled, redundant and read-only calls displace
// no record of a change, even if there are many of them.
func TestRefusedPushOutNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the rate limits use the clock
		l := recording(t, 8000) // some seventy lines
		g := interceptorOf(l)
		if err := g.do(callBy(t, "CN=boss", "admin"), api.Trust_Issue_FullMethodName, nil); err != nil {
			t.Fatal(err)
		}
		ctx := callBy(t, "CN=op", "operator")
		unchanged := func(ctx context.Context, _ any) (any, error) { SetUnchanged(ctx); return nil, nil }
		for i := range 120 {
			_ = g.do(ctx, api.Config_Apply_FullMethodName, status.Error(codes.Code(1+i%16), strings.Repeat("x", 100)))
			_ = g.do(ctx, api.Machine_ListFiles_FullMethodName, nil)
			_, _ = g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: api.Config_Apply_FullMethodName}, unchanged)
			_ = g.Stream(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: api.Image_Import_FullMethodName}, func(any, grpc.ServerStream) error {
				return status.Error(codes.Canceled, "the client left before its first message")
			})
			l.recordRefusal(&api.RecordRefusalRequest{Subject: "CN=op", Role: "operator", Method: api.Machine_Reset_FullMethodName, Outcome: "PermissionDenied"})
		}
		changes := audittest.Entries(t, l.changes, "")
		if changes[0].Method != api.Trust_Issue_FullMethodName || changes[0].Number != 1 || len(changes) > 40 {
			t.Errorf("%d lines, the first one is %+v", len(changes), changes[0])
		}
		if n := len(audittest.Entries(t, l.refused, audit.Refused)); n < 60 || n > 70 {
			t.Errorf("%d rejected calls are recorded, want 60 to 70", n)
		}
	})
}

// TestEffectOf checks the effect of a call by its role, method and code, by whether its caller
// received a part of the answer (sent), and by whether its handler changed no data (unchanged).
func TestEffectOf(t *testing.T) {
	for _, c := range []struct {
		role, method    string
		code            codes.Code
		sent, unchanged bool
		want            effect
	}{
		{"admin", api.Config_Apply_FullMethodName, codes.OK, false, false, effectCertain},
		{"admin", api.Config_Apply_FullMethodName, codes.OK, false, true, effectNone},
		{"admin", api.Config_Apply_FullMethodName, codes.Internal, false, true, effectPossible},
		{"operator", api.Service_Restart_FullMethodName, codes.OK, false, false, effectCertain},
		{"operator", api.Service_Restart_FullMethodName, codes.NotFound, false, false, effectNone},
		{"etcd-backup", api.Etcd_Snapshot_FullMethodName, codes.OK, true, false, effectCertain},
		{"etcd-backup", api.Etcd_Snapshot_FullMethodName, codes.Canceled, true, false, effectPossible},
		{"etcd-backup", api.Etcd_Snapshot_FullMethodName, codes.FailedPrecondition, false, false, effectNone},
		{"etcd-backup", api.Etcd_Snapshot_FullMethodName, codes.ResourceExhausted, true, false, effectPossible},
		{"admin", api.Machine_ReadFile_FullMethodName, codes.OK, true, false, effectPossible},
		{"admin", api.Machine_ReadFile_FullMethodName, codes.Aborted, true, false, effectPossible},
		{"admin", api.Machine_ReadFile_FullMethodName, codes.Aborted, false, false, effectNone},
		{"reader", api.Trust_Renew_FullMethodName, codes.OK, false, false, effectPossible},
		{"machine", api.Cluster_Join_FullMethodName, codes.OK, false, false, effectPossible},
		{"admin", api.Upgrade_Rollback_FullMethodName, codes.Unavailable, false, false, effectPossible},
	} {
		if got := effectOf(audit.Call{Role: c.role, Method: c.method}, c.code, c.sent, c.unchanged); got != c.want {
			t.Errorf("%s %s %s, sent %t: %d, want %d", c.role, c.method, c.code, c.sent, got, c.want)
		}
	}
}

// askingStream is a stream on which each request and each answer succeeds.
type askingStream struct{ fakeStream }

func (askingStream) RecvMsg(any) error { return nil }
func (askingStream) SendMsg(any) error { return nil }

// TestStreamBegins checks that a stream is recorded when it begins, and that an interrupted stream
// is recorded at the next boot.
func TestStreamBegins(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	info := &grpc.StreamServerInfo{FullMethod: api.Etcd_Snapshot_FullMethodName}
	var cut *AuditLog
	err := g.Stream(nil, askingStream{fakeStream{ctx: callBy(t, "CN=keeper", "etcd-backup")}}, info, func(_ any, s grpc.ServerStream) error {
		if err := s.RecvMsg(&api.EtcdSnapshotRequest{Stored: "one"}); err != nil {
			return err
		}
		if got := brief(audittest.Entries(t, l.refused, audit.Refused)); got != "etcd-backup Etcd/Snapshot Begun" {
			t.Errorf("during the stream, the record of rejected calls has %s", got)
		}
		// Power cut: the next boot finds the present content of the disk.
		cut = recording(t, audit.DefaultSize)
		if err := os.CopyFS(cut.inProgress.Dir, os.DirFS(l.inProgress.Dir)); err != nil {
			t.Fatal(err)
		}
		return s.SendMsg(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cut.recordUnfinished(), l.recordUnfinished()); err != nil {
		t.Fatal(err)
	}
	after := audittest.Entries(t, cut.changes, "")
	if len(after) != 1 || after[0].Status != audit.Unfinished || after[0].Subject != "CN=keeper" || after[0].Target != "snapshot one" || after[0].ID == "" {
		t.Errorf("after the power cut: %+v", after)
	}
	ended := audittest.Entries(t, l.changes, "")
	if len(ended) != 1 || ended[0].Status != "OK" || ended[0].ID != after[0].ID {
		t.Errorf("without a power cut: %+v", ended)
	}
	for _, j := range []audit.Journal{cut.inProgress, l.inProgress} {
		if left, err := j.Unfinished(); err != nil || len(left) != 0 {
			t.Errorf("the journal has unfinished calls: %v, %v", left, err)
		}
	}
}

// TestRecordCannotBeWritten checks that, while the audit log cannot be written, a call that changes
// data is rejected, unless its record is optional. A call that ends in this time is recorded when
// the log is writable again.
func TestRecordCannotBeWritten(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	ctx := callBy(t, "CN=admin", "admin")
	called := 0
	call := func(method string) error {
		_, err := g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { called++; return nil, nil })
		return err
	}
	dir := l.inProgress.Dir
	l.inProgress.Dir = filepath.Join(dir, "file", "below")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{api.Config_Apply_FullMethodName, api.Cluster_Kubeconfig_FullMethodName, api.Service_Restart_FullMethodName} {
		if err := call(method); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "refused, nothing was changed") {
			t.Errorf("%s: %v", method, err)
		}
	}
	if called != 0 {
		t.Errorf("%d rejected calls reached the handler", called)
	}
	optional := optionalCalls()
	for _, method := range optional {
		if err := call(method); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if called != len(optional) || called != 9 {
		t.Errorf("%d of %d optional calls reached the handler, want 9", called, len(optional))
	}

	// The record is not writable when a call ends.
	l = recording(t, audit.DefaultSize)
	g.AuditLog = l
	aside := l.changes
	l.changes = closedLog(t)
	if err := call(api.Service_Restart_FullMethodName); err != nil {
		t.Fatal(err)
	}
	if err := call(api.Config_Apply_FullMethodName); status.Code(err) != codes.Unavailable {
		t.Errorf("a call after a call whose end is not recorded: %v", err)
	}
	if left, err := l.inProgress.Unfinished(); err != nil || len(left) != 1 {
		t.Errorf("the journal has the unfinished calls %v, %v; want one", left, err)
	}
	l.changes = aside
	if err := call(api.Config_Apply_FullMethodName); err != nil {
		t.Errorf("a call when the record is writable again: %v", err)
	}
	if got, want := brief(audittest.Entries(t, aside, "")), "admin Service/Restart OK\nadmin Config/Apply OK"; got != want {
		t.Errorf("the record of changes has %s", got)
	}
	l.changes = nil
	if err := call(api.Config_Apply_FullMethodName); status.Code(err) != codes.Unavailable {
		t.Errorf("without a record: %v", err)
	}
}

// optionalCalls returns the methods whose calls run without a record.
func optionalCalls() (methods []string) {
	services := api.File_orlop_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
			if api.AuditRuleOf(name).GetOptional() {
				methods = append(methods, name)
			}
		}
	}
	return methods
}

// closedLog returns a record that cannot be written, because its directory was removed.
func closedLog(t *testing.T) *audit.Log {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gone")
	l, err := audit.Open(dir, audit.DefaultSize, 3)
	if err == nil {
		err = os.Remove(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRecordIsBounded checks how many calls without a change are recorded for each caller, and how
// long their reasons are.
func TestRecordIsBounded(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	for _, role := range []string{"operator", "reader"} {
		began := time.Now()
		for i := range 200 { // with another certificate each time
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(api.MetadataSerial, fmt.Sprint(i), api.MetadataSubject, "CN="+role, api.MetadataRole, role))
			_ = g.do(ctx, api.Machine_ListFiles_FullMethodName, status.Error(codes.InvalidArgument, strings.Repeat("<\x1b", 1<<10)))
		}
		lines := 0
		for _, e := range audittest.Entries(t, l.refused, audit.Refused) {
			if e.Role == role {
				lines++
			}
			if len(e.Reason) > maxReason+100 || strings.Contains(e.Reason, "\x1b") {
				t.Fatalf("a reason has %d bytes, or a control character", len(e.Reason))
			}
		}
		// The limit permits a burst of 60 calls, and one more call each second.
		if most := 61 + int(time.Since(began)/time.Second); lines < 60 || lines > most {
			t.Errorf("%s: %d calls are recorded, expected 60 to %d", role, lines, most)
		}
	}
}

// TestReasonIsOneLine checks that the reason of a call is one line in both records, also if the
// error has several lines: the audit log has a line per call.
func TestReasonIsOneLine(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	joined := errors.Join(errors.New("cannot write:\r\n  no space left"), errors.New("cannot unmount")).Error()
	const want = "cannot write: no space left; cannot unmount"
	ctx := callBy(t, "CN=admin,O=orlop:admin", "admin")
	// The first code is of a call that failed, the second of a call that did not start.
	for _, code := range []codes.Code{codes.Internal, codes.FailedPrecondition} {
		if err := g.do(ctx, api.Machine_Reboot_FullMethodName, status.Error(code, joined)); status.Code(err) != code {
			t.Errorf("got %v, want the code of the handler", err)
		}
	}
	l.recordRefusal(&api.RecordRefusalRequest{Subject: "CN=eye", Role: "reader", Method: api.Machine_Reset_FullMethodName, Outcome: "PermissionDenied", Reason: joined})
	if got := brief(audittest.Entries(t, l.changes, "")); got != "admin Machine/Reboot Internal "+want {
		t.Errorf("changes: %q", got)
	}
	if got := brief(audittest.Entries(t, l.refused, audit.Refused)); got != "admin Machine/Reboot FailedPrecondition "+want+"\nreader Machine/Reset PermissionDenied "+want {
		t.Errorf("rejected calls: %q", got)
	}
}

// TestRefusedLimit checks that repeated rejected calls do not fill the record, and that each of
// them is counted, however many callers there are.
func TestRefusedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusedLimit()
		recorded, left := 0, 0
		for range 500 {
			if ok, before, _ := r.next("1f"); ok {
				recorded++
				if before != 0 {
					t.Errorf("%d calls were skipped before one of the first 60 calls", before)
				}
			}
		}
		if recorded != 60 {
			t.Errorf("%d of 500 calls were recorded, want 60", recorded)
		}
		if ok, _, _ := r.next("2e"); !ok {
			t.Error("another caller is not recorded")
		}
		recorded++
		// more callers than the limiter distinguishes: nearly all of them share one limit
		const calls = 3 * limits.MaxKeys
		for range 2 {
			for i := range calls {
				ok, before, others := r.next(fmt.Sprint("many ", i))
				if left += before + others; ok {
					recorded++
				}
			}
		}
		if ok, _, _ := r.next("1f"); ok {
			t.Error("other callers have reset the limit")
		}
		if len(r.skipped) > limits.MaxKeys || r.others == 0 {
			t.Errorf("the limit counts %d callers, and %d calls of other callers", len(r.skipped), r.others)
		}
		time.Sleep(time.Second)
		ok, before, others := r.next("1f")
		if !ok {
			t.Error("a caller is not recorded after the interval")
		}
		recorded++
		left += before + others
		for _, n := range r.skipped {
			left += n
		}
		if want := 500 + 1 + 2*calls + 2; recorded+left != want || r.others != 0 {
			t.Errorf("%d recorded, %d counted, %d still to report; %d calls were made", recorded, left, r.others, want)
		}
	})
}

// TestTargets checks the target in the audit log for each method whose rule has one.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		method  string
		request proto.Message
		want    string
	}{
		{api.Service_Restart_FullMethodName, &api.RestartServiceRequest{Name: "etcd", Kill: true}, "service etcd"},
		{api.Trust_Issue_FullMethodName, &api.IssueRequest{Name: "alice", Role: "reader"}, "name alice, role reader"},
		{api.Trust_Revoke_FullMethodName, &api.RevokeRequest{Serial: "1f"}, "certificate 1f"},
		{api.Trust_Revoke_FullMethodName, &api.RevokeRequest{Serial: "1f", Name: "alice"}, "name alice"},
		{api.Trust_Revoke_FullMethodName, &api.RevokeRequest{Name: "alice", Restore: true}, "restore name alice"},
		{api.Machine_Reset_FullMethodName, &api.ResetRequest{Wipe: api.ResetRequest_WIPE_STATE}, "state"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{}, "unspecified"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_AUTO}, "auto"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_AUTO, Patch: true, NoTrial: true}, "auto, patch, no trial"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_TRY, Number: 7, Force: true}, "try, number 7, force"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED, NoTrial: true, Force: true}, "staged, no trial, force"},
		{api.Config_Apply_FullMethodName, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_DRY_RUN}, "dry_run"},
		{api.Debug_Capture_FullMethodName, &api.CaptureRequest{Link: "eth0"}, "link eth0"},
		{api.Debug_Profile_FullMethodName, &api.ProfileRequest{Process: "machined"}, "process machined, cpu"},
		{api.Debug_Profile_FullMethodName, &api.ProfileRequest{Process: "apid", Kind: "heap"}, "process apid, heap"},
		{api.Machine_ReadFile_FullMethodName, &api.ReadFileRequest{Path: "/proc/mounts"}, "file /proc/mounts"},
		{api.Machine_ListFiles_FullMethodName, &api.ListFilesRequest{Path: "/sys"}, "directory /sys"},
		{api.Upgrade_Fetch_FullMethodName, &api.FetchBundleRequest{Reference: "r.example.com/orlop:1", Peer: "p", Username: "u", Password: "secret"}, "r.example.com/orlop:1"},
		{api.Upgrade_Fetch_FullMethodName, &api.FetchBundleRequest{Peer: "10.0.0.12"}, "peer 10.0.0.12"},
		{api.Etcd_Restore_FullMethodName, &api.EtcdRestoreRequest{Sha256: "ab", Size: 1}, "SHA-256 ab"},
		{api.Etcd_Restore_FullMethodName, &api.EtcdRestoreRequest{Stored: "one"}, "snapshot one"},
		{api.Etcd_Restore_FullMethodName, &api.EtcdRestoreRequest{Undo: true, Stored: "one"}, "undo"},
		{api.Etcd_Snapshot_FullMethodName, &api.EtcdSnapshotRequest{}, ""},
		{api.Etcd_Snapshot_FullMethodName, &api.EtcdSnapshotRequest{Stored: "one"}, "snapshot one"},
		{api.Etcd_RemoveMember_FullMethodName, &api.EtcdRemoveMemberRequest{Member: "node-2"}, "member node-2"},
		{api.Machine_Relay_FullMethodName, &api.RelayData{Target: "10.0.0.12"}, "machine 10.0.0.12"},
		{api.Cluster_CreateTicket_FullMethodName, &api.CreateTicketRequest{Name: "w1"}, "machine w1"},
		{api.Cluster_Approve_FullMethodName, &api.ApproveRequest{Name: "w1", Fingerprint: "sha256:a"}, "machine w1, key sha256:a"},
		{api.Cluster_Deny_FullMethodName, &api.DenyRequest{Name: "w1", Fingerprint: "sha256:a"}, "machine w1, key sha256:a"},
		{api.Cluster_RemoveMember_FullMethodName, &api.RemoveMemberRequest{Name: "w1"}, "machine w1"},
		{api.Cluster_Suspend_FullMethodName, &api.SuspendRequest{Kind: "apiservice", Name: "v1.x"}, "apiservice v1.x"},
		{api.Cluster_Resume_FullMethodName, &api.ResumeRequest{Kind: "apiservice", Name: "v1.x", Discard: true}, "apiservice v1.x, forget"},
		{api.Cluster_Kubeconfig_FullMethodName, &api.KubeconfigRequest{}, ""},
		{api.Cluster_Kubeconfig_FullMethodName, &api.KubeconfigRequest{Ttl: durationpb.New(time.Hour)}, "for 1h0m0s"},
		{api.Machine_Reboot_FullMethodName, &api.PowerRequest{}, ""},
		{api.Machine_ReadFile_FullMethodName, &api.ReadFileRequest{Path: "/\x1b" + strings.Repeat("ä", 300)}, "file /" + strings.Repeat("?", 194)},
	} {
		if got := target(c.method, c.request, nil); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.method, c.request, got, c.want)
		}
	}
	if got := target(api.Machine_Reset_FullMethodName, nil, nil); got != "" {
		t.Errorf("without a request: %q", got)
	}
}

// TestSuspendIsOnRecord checks that the target of a Suspend or Resume call names the object.
func TestSuspendIsOnRecord(t *testing.T) {
	if got := target(api.Cluster_Suspend_FullMethodName, &api.SuspendRequest{Kind: "apiservice", Name: "v1.x"}, nil); got != "apiservice v1.x" {
		t.Error(got)
	}
	if got := target(api.Cluster_Resume_FullMethodName, &api.ResumeRequest{Kind: "apiservice", Name: "v1.x", Discard: true}, nil); got != "apiservice v1.x, forget" {
		t.Error(got)
	}
}

// captureStream is the stream of a capture with a single request.
type captureStream struct {
	grpc.ServerStream
	ctx  context.Context
	link string
}

func (s captureStream) Context() context.Context { return s.ctx }

func (s captureStream) RecvMsg(m any) error {
	m.(*api.CaptureRequest).Link = s.link
	return nil
}

// TestCaptureIsOnRecord checks that the record of a stream contains its target.
func TestCaptureIsOnRecord(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	stream := captureStream{ctx: t.Context(), link: "eth0"}
	err := g.Stream(nil, stream, &grpc.StreamServerInfo{FullMethod: api.Debug_Capture_FullMethodName}, func(_ any, s grpc.ServerStream) error {
		return s.RecvMsg(new(api.CaptureRequest))
	})
	if err != nil {
		t.Fatal(err)
	}
	began, ended := audittest.Entries(t, l.refused, audit.Refused), audittest.Entries(t, l.changes, "")
	if len(began) != 1 || len(ended) != 1 || began[0].Status != audit.Started || began[0].Target != "link eth0" || ended[0].Target != "link eth0" {
		t.Errorf("at the start, the record has %+v; at the end, it has %+v", began, ended)
	}
}
