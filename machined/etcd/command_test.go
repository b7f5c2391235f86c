package etcd

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestCommands checks that a command gets the request as JSON. The decoder of its answer ignores
// unknown fields and rejects other faults. Only a successful change adds an event.
func TestCommands(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		fails        error
		want         string // error; empty: none
	}{
		{"done", `{"id": "1", "peerUrls": ["https://10.0.0.1"], "new": {"x": [1]}}`, nil, ""},
		{"failed", "", errors.New("no quorum"), "no quorum"},
		{"unreadable", "panic", nil, "the orchestrator's answer to try cannot be read: "},
		{"wrong type", `{"id": 1}`, nil, "the orchestrator's answer to try cannot be read: "},
		{"null", `{"peerUrls": [null]}`, nil, "the orchestrator's answer to try cannot be read: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got, events []string
			command := func(by string) func(context.Context, uint32, string, any, ...*os.File) ([]byte, error) {
				return func(_ context.Context, _ uint32, command string, request any, _ ...*os.File) ([]byte, error) {
					text, err := nodespec.Encode(request)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, by+" "+command+" "+string(text))
					return []byte(c.answer), c.fails
				}
			}
			k := New(Deps{
				Config: cell.New(Config{Config: configured()}).View(), Stopping: t.Context(),
				Command: command("run"), ReadCommand: command("read"),
				Event: func(_, _, message string) { events = append(events, message) },
			})
			read, changed := &api.EtcdMember{}, &api.EtcdMember{}
			for _, err := range []error{
				k.Read(t.Context(), "try", nil, read),
				k.Change(t.Context(), "try", &api.EtcdRemoveMemberRequest{Member: "m"}, changed, func() string { return "member " + changed.Id }),
				k.Change(t.Context(), "try", nil, &api.EtcdMember{}, nil),
			} {
				if c.want == "" && err == nil {
					continue
				}
				if c.want == "" || status.Code(err) != codes.FailedPrecondition || !strings.HasPrefix(status.Convert(err).Message(), c.want) {
					t.Errorf("%v; want %q", err, c.want)
				}
			}
			if all := strings.Join(got, "\n"); all != "read try null\nrun try {\"member\":\"m\"}\nrun try null" {
				t.Error(all)
			}
			if c.want != "" {
				if len(events) > 0 {
					t.Error(events)
				}
				return
			}
			want := &api.EtcdMember{Id: "1", PeerUrls: []string{"https://10.0.0.1"}}
			if !proto.Equal(read, want) || !proto.Equal(changed, want) || strings.Join(events, "\n") != "member 1" {
				t.Error(read, changed, events)
			}
		})
	}
}
