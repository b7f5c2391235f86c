package clusterhealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestPublish checks that a machine collects the health of the cluster only while its controllers
// lead, and that the controllers get the whole answer.
func TestPublish(t *testing.T) {
	answer := &api.ClusterHealthResponse{Cluster: "c", Machines: []*api.ClusterMachine{{Name: "m1", Failed: []string{"kube-scheduler"}}}}
	access := nodespec.AccessPoints{Issuers: []string{"https://login.example.com"}}
	for _, c := range []struct {
		name      string
		enabled   bool
		check     *api.HealthCheck
		healthErr error
		collected int
	}{
		{"leads", true, &api.HealthCheck{Name: "machines", Ok: true, Detail: "3 machines"}, nil, 1},
		{"stands by", true, &api.HealthCheck{Name: "machines", Ok: true, Detail: "standby"}, nil, 0},
		{"controllers fail", true, &api.HealthCheck{Name: "machines"}, nil, 0},
		{"controllers do not run", true, &api.HealthCheck{Name: "kubelet", Ok: true}, nil, 0},
		{"disabled", false, &api.HealthCheck{Name: "machines", Ok: true}, nil, 0},
		{"the health of the machine is unknown", true, nil, context.DeadlineExceeded, 0},
	} {
		collected, written := 0, [][]byte(nil)
		p := NewPublisher(PublisherDeps{
			Enabled: func() bool { return c.enabled },
			Health: func(context.Context) (*api.HealthResponse, error) {
				return &api.HealthResponse{Checks: []*api.HealthCheck{c.check}}, c.healthErr
			},
			Collect: func(context.Context, *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error) {
				collected++
				return answer, nil
			},
			Access: func() nodespec.AccessPoints { return access },
			Write:  func(content []byte) error { written = append(written, content); return nil },
			Event:  func(string, string) {},
		})
		p.publish(t.Context())
		if collected != c.collected || len(written) != c.collected {
			t.Errorf("%s: %d answers collected, %d written, want %d", c.name, collected, len(written), c.collected)
		}
		if c.collected == 0 || len(written) == 0 {
			continue
		}
		var report nodespec.ClusterReport
		got := &api.ClusterHealthResponse{}
		if err := json.Unmarshal(written[0], &report); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(report.Health, got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, answer) || !reflect.DeepEqual(report.Access, access) {
			t.Errorf("%s: the controllers get %v, %+v", c.name, got, report.Access)
		}
	}
}

// TestPublishFailure checks that consecutive failures cause a single event, and that a missing
// directory of the controllers causes no event.
func TestPublishFailure(t *testing.T) {
	var failure error
	events := 0
	p := NewPublisher(PublisherDeps{
		Enabled: func() bool { return true },
		Health: func(context.Context) (*api.HealthResponse, error) {
			return &api.HealthResponse{Checks: []*api.HealthCheck{{Name: "machines", Ok: true}}}, nil
		},
		Collect: func(context.Context, *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error) {
			return &api.ClusterHealthResponse{}, nil
		},
		Access: func() nodespec.AccessPoints { return nodespec.AccessPoints{} },
		Write:  func([]byte) error { return failure },
		Event:  func(string, string) { events++ },
	})
	for i, step := range []struct {
		failure error
		events  int
	}{
		{nil, 0}, {fmt.Errorf("file: %w", fs.ErrNotExist), 0}, {errors.New("disk full"), 1}, {errors.New("disk full"), 1}, {nil, 1}, {errors.New("disk full"), 2},
	} {
		failure = step.failure
		if p.publish(t.Context()); events != step.events {
			t.Errorf("step %d: %d events, want %d", i, events, step.events)
		}
	}
}
