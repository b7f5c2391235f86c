package api

import (
	"context"
	"errors"
	"io"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/audittest"
	"github.com/orlop-os/orlop/pkg/config"
)

var errNoApproval = status.Error(codes.FailedPrecondition, "no approval")

// gate accepts the approval "good" of alice and bob for the content {"wipe": "WIPE_ALL"}.
func gate(_ config.ApprovalCalls, _ string, content map[string]string, file []byte) ([]string, error) {
	if string(file) != "good" || !maps.Equal(content, map[string]string{"wipe": "WIPE_ALL"}) {
		return nil, errNoApproval
	}
	return []string{"alice", "bob"}, nil
}

// TestApproval checks that a guarded call does not reach its handler without an approval. A request
// with a field that is not in the approval is rejected, too. The audit log must name the approvers.
func TestApproval(t *testing.T) {
	l := recording(t, audit.DefaultSize)
	g := interceptorOf(l)
	g.CheckApproval = gate
	ctx := callBy(t, "CN=admin,O=orlop:admin", "admin")
	unknown := &api.ResetRequest{Wipe: api.ResetRequest_WIPE_ALL, Approval: []byte("good")}
	unknown.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01}) // field 99, a number
	for _, c := range []struct {
		name    string
		method  string
		request proto.Message
		code    codes.Code
	}{
		{"no approval", api.Machine_Reset_FullMethodName, &api.ResetRequest{Wipe: api.ResetRequest_WIPE_ALL}, codes.FailedPrecondition},
		{"other content", api.Machine_Reset_FullMethodName, &api.ResetRequest{Wipe: api.ResetRequest_WIPE_ALL, Force: true, Approval: []byte("good")}, codes.FailedPrecondition},
		{"an unknown field", api.Machine_Reset_FullMethodName, unknown, codes.InvalidArgument},
		{"approved", api.Machine_Reset_FullMethodName, &api.ResetRequest{Wipe: api.ResetRequest_WIPE_ALL, Approval: []byte("good")}, codes.OK},
		{"not guarded", api.Machine_Reboot_FullMethodName, &api.PowerRequest{}, codes.OK},
		{"a change of the configuration", api.Config_Apply_FullMethodName, &api.ApplyRequest{}, codes.OK},
	} {
		called := false
		_, err := g.Unary(ctx, c.request, &grpc.UnaryServerInfo{FullMethod: c.method}, func(context.Context, any) (any, error) { called = true; return nil, nil })
		if status.Code(err) != c.code || called != (c.code == codes.OK) {
			t.Errorf("%s: %v, called %v", c.name, err, called)
		}
	}
	changes := audittest.Entries(t, l.changes, "")
	if len(changes) != 3 || changes[0].Approvers != "alice, bob" || changes[1].Approvers != "" {
		t.Errorf("the record of changes has %+v", changes)
	}
	if rejected := audittest.Entries(t, l.refused, audit.Refused); len(rejected) != 3 {
		t.Errorf("the record of rejected calls has %+v, want 3 entries", rejected)
	}
}

// TestApprovalOfStream checks that the first request of a stream needs the approval, and that the
// stream stays rejected if the handler continues to read.
func TestApprovalOfStream(t *testing.T) {
	for _, c := range []struct {
		approval string
		want     error
	}{{"good", io.EOF}, {"", errNoApproval}} {
		l := recording(t, audit.DefaultSize)
		g := interceptorOf(l)
		g.CheckApproval = func(group config.ApprovalCalls, _ string, content map[string]string, file []byte) ([]string, error) {
			if group != config.CallsEtcd || string(file) != "good" || content["sha256"] != "12ab" || content["size"] != "7" {
				return nil, errNoApproval
			}
			return []string{"alice", "bob"}, nil
		}
		requests := []*api.EtcdRestoreRequest{{Size: 7, Sha256: "12ab", Approval: []byte(c.approval)}, {Chunk: []byte("content")}}
		stream := &requestStream{fakeStream{ctx: callBy(t, "CN=admin,O=orlop:admin", "admin")}, requests}
		var got error
		_ = g.Stream(nil, stream, &grpc.StreamServerInfo{FullMethod: api.Etcd_Restore_FullMethodName}, func(_ any, s grpc.ServerStream) error {
			for range 3 {
				got = errors.Join(got, s.RecvMsg(new(api.EtcdRestoreRequest)))
			}
			return nil
		})
		if !errors.Is(got, c.want) || errors.Is(got, errNoApproval) != (c.want == errNoApproval) {
			t.Errorf("with the approval %q: %v", c.approval, got)
		}
	}
}

// requestStream is a stream with these requests.
type requestStream struct {
	fakeStream
	requests []*api.EtcdRestoreRequest
}

func (s *requestStream) RecvMsg(m any) error {
	if len(s.requests) == 0 {
		return io.EOF
	}
	proto.Merge(m.(proto.Message), s.requests[0])
	s.requests = s.requests[1:]
	return nil
}
