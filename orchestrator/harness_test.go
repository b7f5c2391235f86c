package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// The test binary runs itself again as each of the two processes of the control plane. The test has
// a separate network namespace (rtnltest.Isolate), so other programs cannot occupy the fixed ports.
const (
	envProcess = "ORLOP_TEST_PROCESS"
	envRoot    = "ORLOP_TEST_ROOT"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envProcess); name != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		dirs := dirs.In(os.Getenv(envRoot))
		begin := func() error { return run(ctx, name, dirs) }
		if name == idle {
			begin = func() error { return runIdle(ctx) }
		}
		// The process "controllers" starts its own executable again, which here is the test
		// binary.
		if len(os.Args) == 2 && os.Args[1] == controllermanager.Name {
			name, begin = controllermanager.Name, func() error { return runControllerManager(ctx, dirs) }
		}
		profiled := record(ctx, name)
		err := begin()
		profiled()
		stop()
		if err != nil {
			fmt.Fprintf(os.Stderr, "orchestrator: %s: %v\n", name, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The pods of the tests would cause warnings, because of the policy of their namespaces.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	os.Exit(m.Run())
}

// record writes the CPU profile, and at the end of the process the heap profile, to the directory
// in ORLOP_TEST_PROFILE, for go tool pprof. Without the variable it does nothing.
func record(ctx context.Context, name string) (end func()) {
	dir := os.Getenv("ORLOP_TEST_PROFILE")
	if dir == "" {
		return func() {}
	}
	cpu, err := os.Create(filepath.Join(dir, name+".cpu"))
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		panic(err)
	}
	context.AfterFunc(ctx, pprof.StopCPUProfile)
	return func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Fprintf(os.Stderr, "memory (MiB): next collection at %d, in use %d, idle and not given back %d, stacks %d, collector %d, other %d; %d collections\n",
			m.NextGC>>20, m.HeapInuse>>20, (m.HeapIdle-m.HeapReleased)>>20, m.StackInuse>>20, m.GCSys>>20, (m.OtherSys+m.MSpanSys+m.MCacheSys+m.BuckHashSys)>>20, m.NumGC)
		heap, err := os.Create(filepath.Join(dir, name+".heap"))
		if err != nil {
			panic(err)
		}
		if err := pprof.WriteHeapProfile(heap); err != nil {
			panic(err)
		}
	}
}

func testSpec() nodespec.Spec {
	kubernetes := config.DefaultKubernetes()
	kubernetes.FinishedPods = 10
	return nodespec.Spec{
		Cluster: "test",
		Node: nodespec.Node{
			Name:           "node-1",
			ControlPlane:   true,
			IPs:            []netip.Addr{netip.MustParseAddr("192.0.2.10")},
			PauseImage:     "registry.local/pause:1",
			ReservedMemory: 512 << 20,
			ReservedCPU:    250,
		},
		Endpoint: "https://192.0.2.10:6443",
		Network: nodespec.Network{
			PodCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			ServiceCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
			DNSIPs:        []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			DNSDomain:     "cluster.local",
			Encapsulation: "wireguard",
		},
		DNS:        nodespec.DNS{NodeUpstreams: []netip.Addr{netip.MustParseAddr("192.0.2.53")}},
		Kubernetes: kubernetes,
	}
}

// machine contains a node's directories below a temporary root, as machined would have prepared
// them.
type machine struct {
	root string
	dirs dirs.Dirs
	ca   *pki.CA
}

// authorities returns the CAs of a new cluster.
func authorities(t *testing.T) credentials.Authorities {
	t.Helper()
	authority := func(name string) credentials.Authority {
		ca, err := pki.NewCA(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return credentials.Authority{CA: ca}
	}
	private, public, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	return credentials.Authorities{
		Kubernetes: authority("kubernetes"), FrontProxy: authority("front-proxy"), Etcd: authority("etcd"),
		ServiceAccountKey: private, ServiceAccountPub: public, EncryptionKeys: []config.EncryptionKey{config.NewEncryptionKey([32]byte{1})}, RevokedSet: []byte(`{}`), Addons: []byte("[]"), NodeLabels: []byte("{}"), MachineObjects: []byte("{}"),
	}
}

func prepare(t *testing.T, spec nodespec.Spec) machine {
	t.Helper()
	m := machine{root: t.TempDir()}
	m.dirs = dirs.In(m.root)
	authorities := authorities(t)
	m.ca = authorities.Kubernetes.CA
	want, err := credentials.Plan(spec, authorities)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range want.Dirs {
		if err := os.MkdirAll(filepath.Join(m.root, f.Path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range want.Files {
		write(t, filepath.Join(m.root, f.Path), f.Content)
	}
	for _, l := range want.Leaves {
		leaf, err := l.By.Issue(l.Spec)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(m.root, l.Cert), leaf.CertPEM())
		write(t, filepath.Join(m.root, l.Key), leaf.KeyPEM())
	}
	m.writeSpec(t, spec)
	return m
}

// writeSpec writes the specification of the node, which a process reads at its start.
func (m machine) writeSpec(t *testing.T, spec nodespec.Spec) {
	t.Helper()
	content, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(m.root, paths.NodeSpec), content)
}

// modify changes an object to which controllers write, too. After a conflict it reads the object
// again. put is the method Update or UpdateStatus of the same client as get.
func modify[T any](ctx context.Context, t *testing.T, get func(context.Context, string, metav1.GetOptions) (T, error), put func(context.Context, T, metav1.UpdateOptions) (T, error), name string, change func(T)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(object)
		_, err = put(ctx, object, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// started is a process of the orchestrator under test.
type started struct {
	cmd    *exec.Cmd
	log    string
	ended  chan error
	mu     sync.Mutex
	cond   *sync.Cond
	states map[string]notify.Message
	done   bool
}

// start starts a process and reads its announcements. It prints each announcement with the time
// since zero.
func (m machine) start(t *testing.T, name string, zero time.Time) *started {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &started{log: filepath.Join(m.root, name+".log"), ended: make(chan error, 1), states: map[string]notify.Message{}}
	p.cond = sync.NewCond(&p.mu)
	logfile, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), envProcess+"="+name, envRoot+"="+m.root, notify.Env+"=3")
	p.cmd.ExtraFiles = []*os.File{w}
	p.cmd.Stdout, p.cmd.Stderr = logfile, logfile
	// A test that panics or exceeds its time calls no Cleanup, so the kernel kills the process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begun := make(chan error, 1)
	go p.run(begun)
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	w.Close()
	logfile.Close()
	go func() {
		err := notify.Read(r, func(msg notify.Message) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.states[msg.Component] = msg
			t.Logf("%6.2fs %s/%s ready=%t %s", time.Since(zero).Seconds(), name, msg.Component, msg.Ready, msg.Detail)
			p.cond.Broadcast()
		}, func(line string, err error) { t.Errorf("%s sent the invalid announcement %q: %v", name, line, err) })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		if t.Failed() || os.Getenv("ORLOP_TEST_PROFILE") != "" {
			t.Logf("%s", tail(p.log, 60))
		}
		if keep := os.Getenv("ORLOP_TEST_LOGS"); keep != "" {
			if content, err := os.ReadFile(p.log); err == nil {
				write(t, filepath.Join(keep, filepath.Base(p.log)), content)
			}
		}
	})
	return p
}

// run runs the process to its end, and sends the error of its start, or nil, to begun. It blocks
// the thread that started the process, because the kernel sends Pdeathsig when that thread ends
// (prctl(2), PR_SET_PDEATHSIG).
func (p *started) run(begun chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	begun <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	p.mu.Lock()
	p.done = true
	p.mu.Unlock()
	p.ended <- err
	p.cond.Broadcast()
}

// waitReady waits until the named components are ready.
func (p *started) waitReady(t *testing.T, deadline time.Duration, names ...string) {
	t.Helper()
	late := time.AfterFunc(deadline, func() { p.cond.Broadcast() })
	defer late.Stop()
	end := time.Now().Add(deadline)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		for !p.states[name].Ready {
			if p.done || time.Now().After(end) {
				t.Fatalf("%s is not ready after %s (ended: %t): %v", name, deadline, p.done, p.states)
			}
			p.cond.Wait()
		}
	}
}

// stop stops the process and returns its error.
func (p *started) stop(t *testing.T, deadline time.Duration) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		return err
	case <-time.After(deadline):
		t.Fatalf("the process did not end within %s after SIGTERM", deadline)
		return nil
	}
}

// usage describes the process's anonymous memory (MiB) and processor time (s).
func (p *started) usage(t *testing.T) string {
	t.Helper()
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	var anon int
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			fmt.Sscan(rest, &anon)
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system float64
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return fmt.Sprintf("anonymous memory %d MiB, processor time %.2f s", anon>>10, (user+system)/100)
}

func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(content), "\n")
	return path + ":\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
