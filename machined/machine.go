package main

import (
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/approvals"
	"github.com/orlop-os/orlop/machined/clusterhealth"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/debug"
	"github.com/orlop-os/orlop/machined/disk"
	guard "github.com/orlop-os/orlop/machined/disruption"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/facts"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/forwarder"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/hosts"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/resolver"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// machine is the state of machined. Each field has one owner.
type machine struct {
	system    system
	reports   reports
	processes processes
	domains   domains
	config    configuration

	identity *identity.Identity // machine key
	pairing  *ownership.Pairing
	members  *membership.Members // membership of the cluster
	etcd     *etcd.Manager
	images   *images.Manager

	install *install.Manager
	upgrade *upgrade.Upgrade
	power   *power.Controller

	guard *guard.Guard // asks the cluster before the machine is away

	debug *debug.Tools
}

// reports are the records of the operation of machined, for operators.
type reports struct {
	events   *events.Log
	progress *events.Progress
	panics   *events.Panics
	auditLog *machinedapi.AuditLog
	shipping *logship.Shipper
	// object is the OrlopMachine object of this machine, as its node read the object last; nil if
	// there is none.
	object *cell.Cell[*api.ReportedObject]
	health *health.Reporter
	// cluster collects the health of the whole cluster.
	cluster *clusterhealth.Collector
}

// processes are the programs that machined runs.
type processes struct {
	services *supervise.Manager
	commands commands
}

// commands run programs.
type commands struct {
	reaper *supervise.Reaper
	// run runs a command of the orchestrator. read also runs such a command, for RPCs that every
	// reader can call; it limits the number of concurrent commands.
	run, read nodespec.Command
}

// domains are the areas of the machine. Besides the reconciler, the boot steps read or change their
// state.
type domains struct {
	disks   *disk.Controller
	packets *firewall.Filter
	network converge.Network
	clock   clock
	lldp    *lldp.Controller // neighbors on the links
	dns     *resolver.Forwarder
	volumes *volumes.Controller // partitions on other disks
	wear    *wear.Controller    // of the disks
	drain   *drain.Drainer      // drain of the node, before the machine is away
	hosts   *hosts.Register     // waiting machines, on a control-plane machine
	claims  *hosts.Claims       // claims of waiting machines

	encryption encryption // of STATE and DATA
	extensions *extensions.Manager
	forwarder  *forwarder.Server // proxy to servers outside the cluster
}

// configuration is the active configuration, and the functions that replace it and converge the
// machine to it.
type configuration struct {
	active     *activeconfig.Manager
	facts      *facts.Reader
	reconciler *converge.Reconciler
	applier    *applier
	approvals  *approvals.Gate // calls that two operators must approve
}
