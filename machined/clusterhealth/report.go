package clusterhealth

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

const (
	// maxCertificates and maxChecks bound a report; the cluster can have a thousand reports.
	maxCertificates = 32
	maxChecks       = 32
)

// State is the state of this machine for its report.
type State struct {
	Config       *config.Config // active configuration; nil if there is none
	TrialEnd     time.Time      // of the configuration; zero if it is not on trial
	Version      string         // of the system, without a leading v
	Kubernetes   string         // with a leading v
	Health       *api.HealthResponse
	Upgrade      *api.UpgradeStatus
	Certificates []*api.MachineCertificate
	Object       *api.ReportedObject // nil: none
}

// The checks that a report contains even if they pass: the answer shows the text of their details,
// and only the machine with the leading controllers knows this text.
const (
	checkAddons   = "addons"
	checkMachines = "machines"
)

// report returns the report of a machine, with the digests of its Cluster document if there is a
// key.
func report(s State, digestKey []byte) *api.ReportMachineResponse {
	out := &api.ReportMachineResponse{Version: s.Version, Kubernetes: s.Kubernetes, Health: &api.HealthResponse{Healthy: s.Health.GetHealthy()}, Object: s.Object}
	if s.Config != nil {
		out.Name, out.Role = s.Config.Machine.Metadata.Name, string(s.Config.Machine.Spec.Role)
	}
	if len(digestKey) > 0 {
		out.Fields = config.ClusterDigests(s.Config, digestKey)
	}
	for _, c := range s.Health.GetChecks() {
		if (!c.Ok || c.Name == checkAddons || c.Name == checkMachines) && len(out.Health.Checks) < maxChecks {
			out.Health.Checks = append(out.Health.Checks, c)
		}
	}
	if u, _ := proto.Clone(s.Upgrade).(*api.UpgradeStatus); u != nil {
		u.Log, u.Operation, u.Done, u.Total = nil, "", 0, 0
		out.Upgrade = u
	}
	if !s.TrialEnd.IsZero() {
		out.TrialDeadline = timestamppb.New(s.TrialEnd)
	}
	all := slices.Clone(s.Certificates)
	slices.SortStableFunc(all, func(a, b *api.MachineCertificate) int {
		return cmp.Or(a.Expires.AsTime().Compare(b.Expires.AsTime()), cmp.Compare(a.File, b.File))
	})
	out.Certificates = all[:min(len(all), maxCertificates)]
	return out
}
