package console

import (
	"fmt"
	"net/netip"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Facts is the state of the machine from which StatusOf derives the status. Name, Version,
// Kubernetes, Slot, Medium, Stage, Identity and PairingCode are those of Status.
type Facts struct {
	Name, Version, Kubernetes, Slot, Medium string

	Stage      string
	WaitingFor string // the resource for which the stage waits; empty if none
	Identity   string
	// PairingCode is empty if the machine is claimed.
	PairingCode string

	Addresses       []netip.Addr
	NetworkProblems []string
	Services        []supervise.Status
	// StorageProblem and ConfigProblem say why STATE and the stored configuration are unusable.
	StorageProblem, ConfigProblem string
}

// StatusOf returns the status of a machine. A system that is not installed needs no disk, so its
// storage problem is left out.
func StatusOf(f Facts) Status {
	s := Status{
		Name: f.Name, Version: f.Version, Kubernetes: f.Kubernetes, Slot: f.Slot, Medium: f.Medium, Stage: f.Stage,
		Identity: f.Identity, PairingCode: f.PairingCode, Problem: f.StorageProblem,
	}
	if f.Medium != "" || s.Problem == "" {
		s.Problem = f.ConfigProblem
	}
	if f.WaitingFor != "" {
		s.WaitsFor = append(s.WaitsFor, f.WaitingFor)
	}
	for _, a := range f.Addresses {
		s.Addresses = append(s.Addresses, a.String())
	}
	for _, one := range f.Services {
		if one.Name == nodespec.ServiceApid && one.State == supervise.Running && len(s.Addresses) > 0 {
			s.Endpoint = fmt.Sprintf("%s:%d", s.Addresses[0], paths.PortApid)
		}
		s.Services = append(s.Services, one.Name+" "+string(one.State))
	}
	if len(s.Addresses) == 0 {
		s.WaitsFor = append(s.WaitsFor, f.NetworkProblems...)
	}
	return s
}
