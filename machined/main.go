// Command machined is PID 1 of Orlop OS: it makes the machine what its configuration says, keeps
// its processes running and answers the management API behind apid.
//
// Where to read what:
//
//	main.go        wiring
//	boot.go        what happens at boot, in order
//	apply.go       how a configuration is applied
//	cutoff.go      which changes can cut off their caller; fits.go what a configuration names and the machine does not have
//	history.go     configurations on trial, and the earlier ones; reach.go how one that never had an address is left
//	settlement.go  what became of the operations of a configuration
//	follow.go      what follows from a configuration and from the addresses
//	upgrade.go     how an upgrade goes, and goes back
//	membership.go  how a worker joins its cluster; members.go is the control plane's side, agree.go how its machines agree,
//	               forget.go how Kubernetes forgets who was taken out
//	relay.go       how a caller comes through this machine to another one
//	bundles.go     how a bundle comes to the machine
//	artifacts.go   how the artefacts of add-ons come to the machine
//	registries.go  how containerd is told to ask registries for images
//	install.go     how a system that runs from memory is put onto a disk
//	seed.go        the configuration that lies on a medium
//	probe.go       how foreign disks are examined
//	power_linux.go how the machine goes down
//	services.go    the processes
//	kubernetes.go  what the processes of a node are told
//	shipping.go    where logs go besides the machine itself
//	state.go       what can be observed
//	program.go     what becomes of a panic
//	drift.go       what of it is not as it was configured
//	snapshots.go   the snapshots of the cluster's data that the machine takes by itself, which sending.go sends elsewhere
//	kernellog.go   the kernel's log of the start before
//	api.go, cluster.go, debug.go, etcd.go, files.go   the methods of the API
//
// Started under the name apid it is the API's door instead (package apid), and as diskprobe it
// examines a foreign disk (package diskprobe): the same executable, so that the image holds the Go
// runtime and gRPC once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/console"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/bootmedium"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/cgroup"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/esp"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/timesync"
	"github.com/orlop-os/orlop/pkg/watchdog"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "apid":
		os.Exit(apid.Main())
	case filepath.Base(paths.Diskprobe):
		os.Exit(diskprobe.Main())
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "machined: this program is the first process of Orlop OS; there is nothing for it to do here")
		os.Exit(1)
	}
	ctx := context.Background()
	m := newMachine()
	panics.OnPanic(m.panicked)
	m.showConsole(ctx)
	var feeding context.Context
	feeding, m.stopFeeding = context.WithCancel(ctx)
	go m.feedWatchdog(feeding)
	go m.boot(ctx)
	m.loop(ctx)
}

// machine is everything that machined knows. Each field has one owner; parts get what they need,
// never the whole.
type machine struct {
	release buildinfo.Release
	slot    string // "A" or "B"; empty when it runs from memory
	// what it runs from when it is not installed (bootmedium.Memory); empty when it runs from a disk
	medium  string
	started time.Time // when init began
	// facts are what stepHost found, and stay: MemTotal may grow by a page while the machine runs
	// (the kernel gives back what only its start needed), and a plan that follows it would have
	// something to do for ever.
	facts host.Facts

	events   *eventLog
	reaper   *supervise.Reaper
	services *supervise.Manager
	kernel   *host.Kernel
	network  *network.Controller
	console  *console.Console
	// the machine's own key, with whatever certificate it was made with; nil before it is known
	identity atomic.Pointer[pki.Leaf]
	modules  func() (*kmod.Index, error)
	esp      *esp.Partition // where the boot loader's entries are
	inputs   chan struct{}  // an input device has come
	blocks   chan struct{}  // a disk or a partition came or went
	imported chan struct{}  // containerd has come up, or something was imported into it
	// containerd is a connection to containerd's socket that opens itself when it is first used.
	containerd *grpc.ClientConn

	applying sync.Mutex // one configuration at a time
	settling sync.Mutex // one settle at a time
	// since when services have no address to run with; zero: they have. Guarded by settling
	lonely   time.Time
	packets  packetRules
	stepping sync.Mutex // one event of an upgrade at a time
	// one system is received or written at a time: an upgrade, or an installation
	writing   sync.Mutex
	looking   sync.Mutex // one look at what the disks hold at a time
	prober    *diskprobe.Prober
	gifts     gifts
	relays    relays
	captures  chan struct{} // holds one for each capture that goes on
	reads     chan struct{} // holds one for each file that is read
	profiling sync.Mutex    // one profile is taken at a time
	moving    sync.Mutex    // one snapshot of the cluster's data is taken or restored at a time
	askers    chan struct{} // holds one for each question of those who only look (ask.go)
	rules     chan struct{} // holds one while the kernel's packet rules are read (rules.go)
	// held for one caller who takes a snapshot: the file takes room on DATA until he has it
	handing  sync.Mutex
	routine  routine      // of taking them
	sender   sender       // of those that are kept
	calls    *callRecords // who called what
	shipping shipping
	book     book // client certificates issued and revoked
	desk     desk
	asking   applicants // to be let into the cluster
	// what it goes down for: nothing is started any more; nil: it stays up
	going    atomic.Pointer[powerRequest]
	working  context.Context // ends then
	stopWork context.CancelCauseFunc
	// stopFeeding leaves the machine to the watchdog.
	stopFeeding context.CancelFunc

	// keeps the kernel's log; nil before there is a disk to keep it on
	kernelLog atomic.Pointer[keeper]

	// What can be observed. Cells that a part owns are given to it in newMachine.
	topics   []topic
	config   *cell.Cell[applied]
	settled  *cell.Cell[settlement] // what became of putting a configuration in force
	stage    *cell.Cell[stage]
	timeline *cell.Cell[[]moment]
	noRules  *cell.Cell[string] // why rules for packets are not in force; empty when they are
	// why there is no disk to keep anything on; empty when there is
	noStorage     *cell.Cell[string]
	disks         *cell.Cell[diskState]
	networkConfig *cell.Cell[network.Config]
	networkState  *cell.Cell[network.State]
	timeServers   *cell.Cell[[]string]
	timeState     *cell.Cell[timesync.Status]
	past          *timesync.Floor
	upgrade       *cell.Cell[upgradeState]
	installation  *cell.Cell[installState]
	membership    *cell.Cell[membershipState]
	artifacts     *cell.Cell[artifacts] // of add-ons
	program       *cell.Cell[programState]

	connections connections          // to the cluster's other machines
	given       *imagestore.Imported // what other machines may have
	pulls       *places              // of blobs that one of them gets
	mirror      ownMirror            // opened by settle, which alone looks at it
	// resolvers that are not asked for pods; settle alone looks at it
	leftOut    []string
	gate       ownMirror  // the same, for the mirrors of other registries
	mirrors    upstreams  // those that are configured
	suspending suspender  // of Kubernetes' objects, at an administrator's word
	forgetting forgetting // of the Nodes of machines that were taken out
}

func newMachine() *machine {
	m := &machine{
		slot:          os.Getenv("ORLOP_SLOT"),
		medium:        os.Getenv(bootmedium.Env),
		started:       userspaceStart(os.Getenv("ORLOP_USERSPACE_START")),
		events:        newEventLog(),
		inputs:        make(chan struct{}, 1),
		blocks:        make(chan struct{}, 1),
		imported:      make(chan struct{}, 1),
		gifts:         gifts{takers: newPlaces(mostGiven, mostGivenToOne)},
		pulls:         newPlaces(mostPulled, mostPulledByOne),
		relays:        newRelays(),
		captures:      make(chan struct{}, mostCaptures),
		sender:        sender{woke: make(chan struct{}, 1)},
		reads:         make(chan struct{}, mostReads),
		desk:          newDesk(),
		modules:       host.ModuleIndex(),
		config:        cell.New(applied{}),
		settled:       cell.New(settlement{}),
		stage:         cell.New(stage{Name: "starting"}),
		timeline:      cell.New([]moment(nil)),
		noRules:       cell.New(""),
		noStorage:     cell.New(""),
		book:          newBook(paths.TrustLedger),
		calls:         newCallRecords(),
		suspending:    suspender{shelf: keptObjects{paths.SuspendedObjects}},
		asking:        newApplicants(),
		askers:        make(chan struct{}, atOnce),
		rules:         make(chan struct{}, 1),
		disks:         cell.New(diskState{}),
		networkConfig: cell.New(network.Config{}),
		networkState:  cell.New(network.State{}),
		timeServers:   cell.New([]string(nil)),
		timeState:     cell.New(timesync.Status{}),
		past:          timesync.NewFloor(time.Time{}, time.Now()),
		upgrade:       cell.New(upgradeState{}),
		installation:  cell.New(installState{}),
		membership:    cell.New(membershipState{}),
		artifacts:     cell.New(artifacts{}),
		program:       cell.New(programState{}),
	}
	m.working, m.stopWork = context.WithCancelCause(context.Background())
	m.reaper = supervise.NewReaper(nil)
	go m.reaper.Loop(context.Background())
	m.prober = diskprobe.New(m.probe, diskprobe.Deadline, func() { kick(m.blocks) })
	m.services = supervise.NewManager(supervise.Config{
		Reaper: m.reaper,
		Groups: cgroup.Tree(cgroup.Mount),
		Event:  func(service, kind, message string) { m.events.add("service/"+service, kind, message) },
	})
	m.book.past = func() time.Time { return m.past.Now(time.Now()) }
	m.kernel = host.NewKernel(m.modules)
	m.network = network.New(network.Deps{
		Config: m.networkConfig,
		State:  m.networkState,
		Files:  network.SystemFiles,
		Leases: paths.State + "/dhcp",
		Log:    func(line string) { m.events.add("network", "op", line) },
	})
	// A Unix socket's address is never resolved, so making the connection cannot fail.
	m.containerd, _ = grpc.NewClient("unix://"+paths.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	m.given = imagestore.NewImported(imagestore.New(m.containerd))
	m.esp = &esp.Partition{
		Device:  func() (string, error) { p, err := m.place(); return p.ESP, err },
		Target:  paths.ESP,
		Modules: m.kernel.LoadModules,
	}
	m.topics = m.observable()
	return m
}

// userspaceStart turns init's start, in nanoseconds on the monotonic clock (CLOCK_BOOTTIME), into a
// time.
func userspaceStart(ns string) time.Time {
	var began int64
	if _, err := fmt.Sscan(ns, &began); err != nil {
		return time.Now()
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now.Nano() - began))
}

// readRelease reads what the image says about itself.
func readRelease() (buildinfo.Release, error) {
	var r buildinfo.Release
	text, err := os.ReadFile(paths.BuildInfo)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Version == "" {
		err = errors.New("it has no version")
	}
	if err != nil {
		return r, fmt.Errorf("release: cannot read %s: %w", paths.BuildInfo, err)
	}
	return r, nil
}

// petEvery is how often the watchdog is fed; it bites after watchdog.Timeout.
const petEvery = 10 * time.Second

// loop is PID 1's own, and never ends: it takes wishes to go down from signals and the power
// button.
func (m *machine) loop(ctx context.Context) {
	// Ctrl-Alt-Del arrives as SIGINT, where a keyboard is not switched off (machined/console), once
	// the kernel was told not to reboot by itself (reboot(2)).
	unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	m.keeper().Go(ctx, "power button", func(ctx context.Context) {
		power.Buttons(ctx, "/dev/input", m.inputs, func(device string) {
			m.goDown(powerRequest{to: power.PowerOff, why: "power button (" + device + ")"})
		})
	})
	power.Signals(ctx, func(mode power.Mode, why string) {
		m.goDown(powerRequest{to: mode, why: why})
	})
	select {} // PID 1 must not end
}

// servicesMute is how long the services may not answer while the watchdog is fed: one that is
// started waits for the disk, which may be away for a minute and more, as when a SAN fails over.
const servicesMute = 5 * time.Minute

// lateWatchdog arms a watchdog whose driver is loaded after init: some are devices that another
// device's driver has made (i2c-i801 makes iTCO_wdt).
func lateWatchdog(ctx context.Context) *watchdog.Watchdog {
	tick := time.NewTicker(petEvery)
	defer tick.Stop()
	for range 6 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if dog, err := watchdog.Arm(watchdog.Device, watchdog.Timeout); err == nil {
			return dog
		}
	}
	return nil
}

// feedWatchdog feeds the watchdog that init armed, as long as the parts that everything goes
// through answer.
func (m *machine) feedWatchdog(ctx context.Context) {
	dog, err := watchdog.Inherit(os.Getenv(watchdog.FileEnv))
	if err != nil {
		m.events.add("watchdog", "failure", err.Error())
		return
	}
	if dog == nil {
		if dog = lateWatchdog(ctx); dog == nil {
			m.events.add("watchdog", "state", "this machine has none")
			return
		}
		m.events.add("watchdog", "state", "its driver came late, and it is armed now")
	}
	answered := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			m.services.Services()
			select {
			case answered <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	last := time.Now()
	power.WatchdogFeeder{
		Every: petEvery, Pet: dog.Pet,
		Alive: func(context.Context) error {
			m.stage.Get()
			m.events.after(0)
			select {
			case <-answered:
				last = time.Now()
			default:
				if mute := time.Since(last); mute > servicesMute {
					return fmt.Errorf("the services have not answered for %v", mute.Round(time.Second))
				}
			}
			return nil
		},
		Report: func(err error) {
			if err != nil {
				m.say("watchdog: not fed: " + err.Error())
			}
		},
	}.Run(ctx)
}
