package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
)

// pollInterval is the delay between two calls. A machine returns the same answer to all callers for
// this time.
const pollInterval = 2 * time.Second

// ClusterReport is a report of WaitCluster: an answer, or the reason for a missing answer.
type ClusterReport struct {
	Answer  *api.ClusterHealthResponse
	Waiting error
}

// Ask returns the health of the whole cluster. machineTimeout is the time within which each machine
// must answer; 0 means the default.
func Ask(ctx context.Context, c *client.Client, machineTimeout time.Duration) (*api.ClusterHealthResponse, error) {
	r := &api.ClusterHealthRequest{}
	if machineTimeout != 0 {
		r.MachineTimeout = durationpb.New(machineTimeout)
	}
	return c.Cluster.ClusterHealth(ctx, r)
}

// WaitCluster calls a machine repeatedly until the whole cluster is healthy, and passes each answer
// or failure to show. It retries while the machine does not answer. With once it makes a single
// call. It returns the last answer, and an error if the cluster is not healthy.
func WaitCluster(ctx context.Context, endpoint client.Endpoint, once bool, machineTimeout time.Duration, show func(ClusterReport)) (last *api.ClusterHealthResponse, err error) {
	for {
		var answer *api.ClusterHealthResponse
		err = connect.Attempt(ctx, endpoint, func(_ context.Context, c *client.Client) (err error) {
			answer, err = Ask(ctx, c, machineTimeout)
			return err
		})
		if err == nil {
			last = answer
		}
		switch {
		case last.GetHealthy():
			return last, nil
		case err == nil && once:
			return last, unhealthyCluster(last)
		case ctx.Err() != nil, exit.TimedOut(err):
			return last, gaveUpCluster(ctx, last, err)
		case once || !exit.IsTemporary(err):
			return last, err
		}
		show(ClusterReport{Answer: answer, Waiting: err})
		if backoff.Sleep(ctx, pollInterval) != nil {
			return last, gaveUpCluster(ctx, last, err)
		}
	}
}

func gaveUpCluster(ctx context.Context, last *api.ClusterHealthResponse, err error) error {
	switch {
	case context.Cause(ctx) == context.Canceled:
		return &exit.Error{Code: exit.Unhealthy, Err: errors.New("health: stopped before the cluster was healthy")}
	case last != nil:
		return unhealthyCluster(last)
	}
	return err
}

// unhealthyCluster returns the error for a cluster with problems.
func unhealthyCluster(r *api.ClusterHealthResponse) error {
	missing := 0
	for _, m := range r.GetMachines() {
		if m.Problem != "" {
			missing++
		}
	}
	text := "the cluster is not healthy: " + format.Count(len(r.GetProblems()), "problem")
	if missing > 0 {
		text += fmt.Sprintf("; %d of %s did not answer", missing, format.Count(len(r.Machines), "machine"))
	}
	return &exit.Error{Code: exit.Unhealthy, Err: errors.New(text)}
}

// ClusterProblem returns a finding in a single line. It sanitizes the text, because texts come from
// machines.
func ClusterProblem(f *api.ClusterFinding) string {
	where := f.Subject
	if f.Machine != "" {
		where = f.Machine + " (" + f.Subject + ")"
	}
	return format.Clean(where + ": " + f.Reason)
}

// WriteCluster prints the health of the cluster for people: the machines, etcd, the certificates,
// the add-ons, and each problem and note with its remedy.
func WriteCluster(out io.Writer, r *api.ClusterHealthResponse) error {
	if err := WriteMachines(out, r); err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("\n" + describeEtcd(r.Etcd) + "\n" + describeCertificates(r.Machines))
	for _, line := range []struct{ name, text string }{{"add-ons", r.Addons}, {"rollout", r.Rollout}} {
		if line.text != "" {
			text.WriteString(line.name + ": " + format.Clean(line.text) + "\n")
		}
	}
	for _, list := range []struct {
		name string
		all  []*api.ClusterFinding
	}{{"problem", r.Problems}, {"note", r.Notes}} {
		for _, f := range list.all {
			text.WriteString("\n" + list.name + ": " + ClusterProblem(f) + "\n")
			if f.Remedy != "" {
				text.WriteString("  → " + format.Clean(f.Remedy) + "\n")
			}
		}
	}
	if r.Healthy {
		text.WriteString("\nthe cluster " + format.Clean(r.Cluster) + " is healthy\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// describeEtcd describes etcd in a single line.
func describeEtcd(e *api.ClusterEtcd) string {
	if e.GetProblem() != "" {
		return "etcd: unknown: " + format.Clean(e.Problem)
	}
	answering := 0
	for _, m := range e.GetMembers() {
		if m.Problem == "" {
			answering++
		}
	}
	leader := "no leader"
	if e.GetLeader() != "" {
		leader = "leader " + e.Leader
	}
	return format.Clean(fmt.Sprintf("etcd: %d of %s answer, %s", answering, format.Count(len(e.GetMembers()), "member"), leader))
}

// describeCertificates describes the certificate that expires first, in a single line. It returns
// "" if no expiry is known.
func describeCertificates(machines []*api.ClusterMachine) string {
	var first *api.ClusterMachine
	for _, m := range machines {
		if m.CertificateExpiry != nil && (first == nil || m.CertificateExpiry.AsTime().Before(first.CertificateExpiry.AsTime())) {
			first = m
		}
	}
	if first == nil {
		return ""
	}
	return format.Clean(fmt.Sprintf("certificates: the first expires on %s, on %s", first.CertificateExpiry.AsTime().UTC().Format(time.DateOnly), first.Name)) + "\n"
}

// WriteMachines prints the machines of the cluster as a table.
func WriteMachines(out io.Writer, r *api.ClusterHealthResponse) error {
	return iostreams.DrawTable(out, func(w *tabwriter.Writer) {
		iostreams.Row(w, "NAME", "ADDRESS", "ROLE", "RELEASE", "KUBERNETES", "READY", "WANTED", "MESSAGE")
		for _, m := range r.Machines {
			ready, message := "False", m.Message
			switch {
			case m.Problem != "":
				ready, message = "Unknown", m.Problem
			case m.Ready:
				ready = "True"
			}
			row := []string{m.Name, m.Address, m.Role, m.Version, m.Kubernetes, ready, m.Wanted, message}
			for i, cell := range row {
				row[i] = format.Clean(format.OrDash(cell))
			}
			iostreams.Row(w, row...)
		}
	})
}
