package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/vm"
)

const (
	machineName = "bench"
	// processors and translationMiB have the same values for our machine, a former release and the
	// baseline.
	processors     = 2
	translationMiB = 1024
	// dialTry is the deadline of one attempt to connect. It is short because the first attempts
	// begin before the machine has an address. pause is the interval between two attempts of any
	// operation.
	dialTry = 250 * time.Millisecond
	pause   = 20 * time.Millisecond
	// callLimit is the deadline of one call. On an emulated processor, the first TLS handshake
	// takes a second.
	callLimit = 20 * time.Second
)

// system is one of the measured versions of our system: this version or a former release.
type system struct {
	label  string // for messages
	image  string // directory of disk.raw, disk.raw.zst and manifest.json
	bin    string // directory of the orlopctl of this version
	bundle string // bundle of a higher version for the upgrade; empty: no upgrade is measured
}

// boot is a measured power-on of one of our machines.
type boot struct {
	options
	system
	dir     string
	cpus    int
	memory  int  // MiB
	goesOn  bool // whether QEMU continues after a reset of the machine, as an upgrade requires
	network *vm.Network
	machine *vm.Machine
	poweron time.Time
	pinned  client.Endpoint // address, fingerprint and client certificate of the connection
	client  *client.Client
	record  *record
}

// newBoot returns a boot of a machine with the default processors and memory. The machine's files
// are in dir.
func newBoot(o options, s system, dir string) *boot {
	return &boot{options: o, system: s, dir: dir, cpus: processors, memory: o.memoryMiB, record: newRecord()}
}

// bootMachine boots one machine and measures the times of its boot. After an idle time, it measures
// the memory of the machine, and then its use of processors. The console log and the events are
// stored in dir.
func bootMachine(ctx context.Context, o options, s system, podImage, dir string) (run machineRun, err error) {
	b := newBoot(o, s, dir)
	err = b.whileOn(ctx, func(ctx context.Context, documents []byte) error {
		run, err = b.measure(ctx, documents, podImage)
		return err
	})
	return run, err
}

// whileOn creates the machine, switches it on, calls measure, and switches it off. If measure
// fails, whileOn stores the state of the machine for the analysis (explain).
func (b *boot) whileOn(ctx context.Context, measure func(ctx context.Context, documents []byte) error) error {
	documents, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	if b.network, err = vm.NewNetwork(vm.NetworkSpec{}); err != nil {
		return err
	}
	defer b.network.Close()
	if err := b.powerOn(ctx); err != nil {
		return err
	}
	defer b.powerOff()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if exit, err := b.machine.Wait(ctx); err == nil {
			cancel(fmt.Errorf("%w: QEMU: %s", errEarly, exit))
		}
	}()
	if err := measure(ctx, documents); err != nil {
		return errors.Join(err, cause(ctx), b.explain(context.WithoutCancel(ctx)))
	}
	return nil
}

// logLines is the number of lines of a service's log that are stored after a failed boot.
const logLines = 200

// explain stores the state of a failed boot in failure.txt: the timeline of the boot, the waits of
// the components, the memory, and the logs of the services that do not run. The returned error
// contains the end of the console log.
func (b *boot) explain(ctx context.Context) error {
	file := filepath.Join(b.dir, "failure.txt")
	var out bytes.Buffer
	if b.client != nil && b.machine.Running() {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		if err := b.record.complete(ctx, b.client); err != nil {
			fmt.Fprintln(&out, err)
		}
		b.writeLogs(ctx, &out)
		if run, err := b.readMemory(ctx); err == nil {
			fmt.Fprintf(&out, "Memory used: %s MiB. ", number(run.MachineUsedMiB))
			printProcesses(&out, "the machine", run.AnonMiB)
		}
	}
	if init, err := b.record.init(); err == nil {
		writeStages(&out, machineRun{Timeline: b.record.timeline(init.Sub(b.poweron).Seconds(), nil), Events: b.record.events})
	}
	text := fmt.Errorf("the state of the failed boot is in %s; end of the console:\n%s", file, b.machine.ConsoleTail(20))
	return errors.Join(text, os.WriteFile(file, out.Bytes(), 0o644))
}

// writeLogs writes the state of each service, and the end of the log of each service that does not
// run.
func (b *boot) writeLogs(ctx context.Context, out io.Writer) {
	services, err := machinestate.Get[[]service](ctx, b.client, "services")
	if err != nil {
		fmt.Fprintln(out, err)
	}
	for _, s := range services {
		fmt.Fprintf(out, "service %s: %s %s\n", s.Name, s.State, s.Detail)
		if s.State == "running" {
			continue
		}
		stream, err := b.client.Log.Service(ctx, &api.ServiceLogRequest{Service: s.Name, Tail: logLines})
		for err == nil {
			var line *api.LogLine
			if line, err = stream.Recv(); err == nil {
				fmt.Fprintf(out, "    %s\n", line.Text)
			}
		}
		if err != io.EOF {
			fmt.Fprintln(out, err)
		}
	}
}

// cause returns the reason for the end of ctx if the reason is errEarly. It returns nil for any
// other reason, such as a deadline.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, errEarly) {
		return err
	}
	return nil
}

// prepare empties the directory, loads the operator's certificate, and makes the machine's disk. It
// returns the configuration.
func (b *boot) prepare(ctx context.Context) ([]byte, error) {
	if err := os.RemoveAll(b.dir); err != nil {
		return nil, fmt.Errorf("machine: cannot empty its directory: %w", err)
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, fmt.Errorf("machine: cannot create its directory: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(b.operator, "admin.crt"), filepath.Join(b.operator, "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("operator: cannot read its certificate: %w; set -operator to the directory of the operator for which the image was built", err)
	}
	b.pinned.Cert = cert
	// The disk is copied before power-on, because the time of the copy must not be measured. vm
	// does not replace an existing disk.
	disk := filepath.Join(b.dir, "disk0.raw")
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", filepath.Join(b.image, "disk.raw"), disk).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("image: cannot copy: %w: %s; build it with `make image`", err, out)
	}
	if err := os.Truncate(disk, 8<<30); err != nil {
		return nil, fmt.Errorf("image: cannot enlarge: %w", err)
	}
	return b.documents(ctx)
}

// documents makes the configuration with orlopctl. It can use the machine's address before the
// machine runs, because the closed network always assigns the same first address.
func (b *boot) documents(ctx context.Context) ([]byte, error) {
	secrets, file := filepath.Join(b.dir, "secrets.yaml"), filepath.Join(b.dir, "machine.yaml")
	for _, args := range [][]string{
		{"gen", "secrets", "--out", secrets},
		{"gen", "config", machineName, b.endpoint(), "--cluster-name", machineName, "--secrets", secrets, "--out", file},
	} {
		if out, err := exec.CommandContext(ctx, filepath.Join(b.bin, "orlopctl"), args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("orlopctl %s: %w: %s; `make tools` builds it", args[1], err, out)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("configuration: cannot read: %w", err)
	}
	return text, nil
}

// address is the machine's address in the closed network of its boot.
const address = "10.77.0.11"

// endpoint returns the URL of the Kubernetes API.
func (b *boot) endpoint() string {
	return "https://" + net.JoinHostPort(address, strconv.Itoa(paths.PortKubernetes))
}

// powerOn creates the machine and switches it on. It sets b.poweron to the time before it calls
// vm.Start.
func (b *boot) powerOn(ctx context.Context) error {
	b.poweron = time.Now()
	var err error
	b.machine, err = vm.Start(ctx, vm.MachineSpec{
		Name: machineName, Dir: b.dir, MemoryMiB: b.memory, CPUs: b.cpus, Disks: vm.BootDisk("", 0), NIC: vm.NIC{Network: b.network},
		Watchdog: true, QEMU: vm.QEMU{NoReboot: !b.goesOn, TranslationMiB: translationMiB},
	})
	if err != nil {
		return err
	}
	if got := b.machine.Addr().String(); got != address {
		return errors.Join(fmt.Errorf("machine: its address is %s, expected %s", got, address), b.machine.Close())
	}
	return nil
}

// powerOff ends the machine and removes its disk. The console log remains.
func (b *boot) powerOff() {
	if b.client != nil {
		b.client.Close() // the machine ends in any case
	}
	b.machine.Close()
	os.Remove(b.machine.DiskPath("disk0")) // an error only costs disk space
}

// measure configures the machine, watches its boot until a pod runs, lets it idle, and reads its
// memory and its use of processors.
func (b *boot) measure(ctx context.Context, documents []byte, podImage string) (machineRun, error) {
	var run machineRun
	answered, applied, err := b.configure(ctx, documents)
	if err != nil {
		return run, err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	b.record.follow(following, b.client)
	node, pod, err := b.watchPod(ctx, podImage)
	if err != nil {
		return run, err
	}
	// The machine adds further moments to its timeline after the pod runs, and complete reads them
	// below. The watches end here, because their streams would add to the use of processors of the
	// idle machine.
	stop()
	if err := backoff.Sleep(ctx, b.idle); err != nil {
		return run, err
	}
	if run, err = b.readMemory(ctx); err != nil {
		return run, err
	}
	if run.idleFigures, err = b.measureIdle(ctx); err != nil {
		return run, err
	}
	if err := b.record.complete(ctx, b.client); err != nil {
		return run, err
	}
	init, err := b.record.init()
	if err != nil {
		return run, err
	}
	seconds := func(t time.Time) *float64 { s := t.Sub(init).Seconds(); return &s }
	run.Timeline = b.record.timeline(init.Sub(b.poweron).Seconds(), map[string]float64{
		"first authenticated answer": *seconds(answered), "configuration applied": *seconds(applied),
		"node Ready, seen by a client": *seconds(node), "pod Running, seen by a client": *seconds(pod),
	})
	run.Events = b.record.events
	toAPI := answered.Sub(b.poweron).Seconds()
	toUserspace := init.Sub(b.poweron).Seconds()
	run.PoweronToAPI, run.PoweronToUserspace, run.APIAfterInit = &toAPI, &toUserspace, seconds(answered)
	run.ToNodeReady, run.ToPodRunning = seconds(node), seconds(pod)
	kube, ok := b.record.moment("orchestrator-api/kube-apiserver")
	if !ok {
		return run, errors.New("timeline: the machine does not say when the Kubernetes API was ready: no moment orchestrator-api/kube-apiserver")
	}
	run.ToKubeAPI = &kube
	return run, writeTimeline(filepath.Join(b.dir, "timeline.txt"), run)
}

// configure connects to the machine and applies the configuration, which creates a cluster of one
// machine. It returns the time of the first answer and the time at which the machine accepted the
// configuration.
func (b *boot) configure(ctx context.Context, documents []byte) (answered, applied time.Time, err error) {
	if answered, err = b.meet(ctx); err == nil {
		applied, err = b.apply(ctx, documents)
	}
	return answered, applied, err
}

// meet reads the fingerprint of the machine's key from the console and connects to the machine. It
// returns the time of the first answer.
func (b *boot) meet(ctx context.Context) (time.Time, error) {
	match, err := b.machine.WaitConsole(ctx, machinestate.IdentityLine)
	if err != nil {
		return time.Time{}, err
	}
	b.pinned.Fingerprint = match[1]
	return b.firstAnswer(ctx)
}

// firstAnswer retries until a call of Version succeeds, and returns the time of the answer. It
// fails at once if the machine rejects the operator or presents another key.
func (b *boot) firstAnswer(ctx context.Context) (time.Time, error) {
	b.pinned.Address = address
	b.pinned.Dialer = b.dialUntilOpen
	for {
		trying, cancel := context.WithTimeout(ctx, callLimit)
		c, err := client.Dial(trying, b.pinned)
		if err == nil {
			if _, err = c.Machine.Version(trying, &api.VersionRequest{}); err == nil {
				at := time.Now()
				cancel()
				b.client = c
				return at, nil
			}
			c.Close() // the next attempt opens a new connection
		}
		cancel()
		if errors.Is(err, client.ErrRefused) || errors.Is(err, client.ErrUntrusted) {
			return time.Time{}, fmt.Errorf("first answer: %w; the image answers only to the operator that it was built for", err)
		}
		if end := backoff.Sleep(ctx, pause); end != nil {
			return time.Time{}, fmt.Errorf("first answer: %w: %w", end, err)
		}
	}
}

// dialUntilOpen connects to the port as soon as the port is open. Its attempts have a short
// deadline, because TCP would retransmit the first packet of an attempt only after a second. The
// machine can get its address within this second.
func (b *boot) dialUntilOpen(ctx context.Context, target string) (net.Conn, error) {
	for {
		trying, cancel := context.WithTimeout(ctx, dialTry)
		conn, err := b.network.DialContext(trying, "tcp", target)
		cancel()
		if err == nil {
			return conn, nil
		}
		if backoff.Sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// apply applies the configuration, and returns the time of the answer.
func (b *boot) apply(ctx context.Context, documents []byte) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := b.client.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: machineName + ".yaml"})
	if err != nil {
		return time.Time{}, fmt.Errorf("configuration: cannot apply: %w", err)
	}
	if answer.Reboot {
		return time.Time{}, errors.New("configuration: the machine reboots to apply it, but such a boot is not measured")
	}
	return time.Now(), nil
}

// importImage imports the pod's image as soon as containerd runs. The baseline does the same before
// it starts its kubelet, so neither side pulls the image.
func (b *boot) importImage(ctx context.Context, file string) error {
	if err := b.record.wait(ctx, "containerd"); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("image: cannot read: %w", err)
	}
	defer f.Close()
	stream, err := b.client.Image.Import(ctx)
	if err != nil {
		return fmt.Errorf("image: cannot import: %w", err)
	}
	chunk := make([]byte, 1<<20)
	for {
		n, err := f.Read(chunk)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("image: cannot read: %w", err)
		}
		if err := stream.Send(&api.ImportImageRequest{Chunk: chunk[:n]}); err != nil {
			break // CloseAndRecv returns the reason
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		return fmt.Errorf("image: cannot import: %w", err)
	}
	return nil
}
