package machinetest

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/disruption"
)

// neededName is the name of a machine that its cluster needs for the quorum of etcd. The machine
// rejects operations after which it would be away.
const neededName = "needed"

// checkNeeded rejects an operation of the machine neededName, unless force is set. It returns nil
// for other machines.
func (f *Machine) checkNeeded(o disruption.Operation, force bool) error {
	if c := f.Current(); c == nil || c.Machine.Metadata.Name != neededName || force {
		return nil
	}
	machine := disruption.Machine{Name: neededName, ControlPlane: true, Others: true}
	members := []disruption.Member{{Name: neededName, Own: true}, {Name: "b"}, {Name: "c", Problem: "no route to host"}}
	no := disruption.Decide(machine, disruption.Request{Operation: o}, disruption.ControlPlane{Members: members}, disruption.Versions{})
	return status.Error(codes.FailedPrecondition, no.Error())
}
