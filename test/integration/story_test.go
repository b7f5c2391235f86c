package integration

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/orlop-os/orlop/orchestrator/etcd/s3/s3test"
	"github.com/orlop-os/orlop/orchestrator/kms/transittest"
	"github.com/orlop-os/orlop/pkg/egress/egresstest"
	"github.com/orlop-os/orlop/vm"
)

var (
	imageDir = flag.String("image", "", "directory of the image to test (build/qemu)")
	binDir   = flag.String("bin", "", "directory of orlopctl and kubectl (build/bin)")
	stories  = flag.String("stories", "testdata", "`directory` of the stories to run")
	versions = flag.String("versions", "", "`directory` of the images and of other versions as upgrade bundles (build)")
	operator = flag.String("operator", "", "directory of the operator's CA and certificate that the image was built for (build/operator)")
)

// TestStories runs every story in testdata. The stories run one after the other, because the
// emulated machines of concurrent stories would only slow each other down.
func TestStories(t *testing.T) {
	if *imageDir == "" || *binDir == "" || *operator == "" {
		t.Fatal("the stories need an image: run `make stories`, or give -image, -bin and -operator after -args")
	}
	files, err := filepath.Glob(filepath.Join(*stories, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories found: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			for again := 0; ; again++ {
				a := &attempt{t: t}
				broke := a.tell(file)
				if !a.failed {
					return
				}
				if broke == "" || again == mostRepeats {
					broken = append(broken, a.said...)
					t.FailNow()
				}
				t.Logf("%s is repeated (%d of at most %d), because the guest's kernel broke under the emulator:\n%s", name, again+1, mostRepeats, broke)
				fmt.Printf("story %s is repeated: the guest's kernel broke under the emulator\n", name)
			}
		})
	}
}

// mostRepeats is how many times a failed story is repeated if the emulator broke the kernel of a
// machine (vm.KernelBreak). A machine restarts after such a break, so most stories pass in spite of
// the break. A real fault of the system occurs again in each repetition, so the story still fails.
const mostRepeats = 2

// attempt is one run of a story. It implements the interface testscript.T.
type attempt struct {
	t      *testing.T
	failed bool
	said   []string // texts that are printed after all stories
}

// longestStory is the deadline of a story, in the time of the machines.
const longestStory = 40 * time.Minute

var dilateLine = regexp.MustCompile(`(?m)^dilate (\d+)$`)

// dilationOf returns the factor in the story's line with the verb dilate, or 1. It reads the text
// of the story, because testscript needs its deadline before the story starts.
func dilationOf(story string) int {
	if match := dilateLine.FindStringSubmatch(story); match != nil {
		if n, err := strconv.Atoi(match[1]); err == nil {
			return n
		}
	}
	return 1
}

// tell runs the story once. If the kernel of a machine broke (vm.KernelBreak), it returns the part
// of the console around the break. Otherwise it returns an empty string.
func (a *attempt) tell(file string) string {
	s := newStory(a)
	text, err := os.ReadFile(file)
	if err != nil {
		a.t.Fatal(err)
	}
	deadline := time.Now().Add(longestStory * time.Duration(dilationOf(string(text))))
	a.Run("", func(t testscript.T) {
		testscript.RunT(t, testscript.Params{
			Files: []string{file}, Setup: s.setup, Cmds: s.verbs(), RequireExplicitExec: true, Deadline: deadline,
		})
	})
	return s.close()
}

// Run runs a script in a goroutine and waits for its end.
func (a *attempt) Run(_ string, script func(testscript.T)) {
	done := make(chan struct{})
	go func() { // FailNow ends this goroutine only
		defer close(done)
		script(a)
	}()
	<-done
}

func (a *attempt) Verbose() bool { return testing.Verbose() }

// Parallel does nothing, because stories run one after the other.
func (a *attempt) Parallel() {}

func (a *attempt) Skip(args ...any) {
	a.t.Log(args...)
	runtime.Goexit()
}

func (a *attempt) Fatal(args ...any) {
	a.Log(args...)
	a.FailNow()
}

func (a *attempt) FailNow() {
	a.failed = true
	runtime.Goexit()
}

// Log is called once by testscript, with the log of the script and its result.
func (a *attempt) Log(args ...any) {
	a.t.Helper()
	a.t.Log(args...)
	if text := fmt.Sprint(args...); strings.Contains(text, "\nFAIL: ") {
		a.said = append(a.said, fmt.Sprintf("%s failed:\n%s", a.t.Name(), lastLines(text, 25)))
	}
}

// broken holds two kinds of texts for each failed story: the state of the story's cluster, and then
// the end of the story's log.
var broken []string

// TestMain prints the ends of the failed stories after all other output, because a reader of a long
// log often begins at its end.
func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range broken {
		fmt.Println(end)
	}
	os.Exit(code)
}

// story is the environment of one script: a closed network with machines.
type story struct {
	t     *attempt
	dir   string
	began time.Time

	mu       sync.Mutex
	timeline []string

	network  *vm.Network
	machines map[string]*vm.Machine
	seen     map[string]int64 // position up to which the story has read each console
	write    *writer
	read     *reader
	customer *customer
	history  *history
	issuer   *site
	receiver *receiver
	proxy    *egresstest.Proxy
	bucket   *s3test.Store
	transit  *transittest.Server
	boards   map[string]*board // the machines with a management controller; nil: none
	secure   *secureServer
	bgp      *vm.BGPRouter // nil: the gateway does not speak BGP
	env      []string      // environment of the programs that the story runs, set by setup
	tools    string        // directory of orlopctl and kubectl
	current  string        // name of the machine that orlopctl calls
	verify   []string      // flags with which orlopctl verifies the machine
}

func newStory(t *attempt) *story {
	s := &story{t: t, dir: t.t.TempDir(), began: time.Now(), tools: *binDir, machines: map[string]*vm.Machine{}, seen: map[string]int64{}}
	if err := s.connect(1, vm.IPv6Spec{}); err != nil {
		t.t.Fatal(err)
	}
	return s
}

// connect creates the closed network with this time dilation and this IPv6 router.
func (s *story) connect(dilation int, six vm.IPv6Spec) (err error) {
	s.network, err = vm.NewNetwork(vm.NetworkSpec{Capture: filepath.Join(s.dir, "network.pcap"), Dilation: dilation, IPv6: six})
	return err
}

// close switches all machines off, and prints the steps and the consoles if the story failed. It
// returns the part of a console around a break of a machine's kernel, or an empty string.
func (s *story) close() (broke string) {
	if s.write != nil {
		s.write.stop()
	}
	if s.read != nil {
		s.read.stop()
	}
	if s.customer != nil {
		s.customer.stop()
	}
	if s.history != nil {
		s.history.stop()
	}
	if s.t.failed {
		s.t.t.Logf("the steps of the story:\n%s", strings.Join(s.timeline, "\n"))
	}
	for name, m := range s.machines {
		console := m.Console().String()
		last := vm.KernelPanic(console)
		if s.t.failed {
			s.t.t.Logf("console of %s, the last 60 lines (all of it in %s while the test runs):\n%s", name, m.Console().Path(), m.ConsoleTail(60))
		} else if last != "" {
			s.note("the kernel of %s panicked, and the machine restarted:\n%s", name, last)
		}
		if last := vm.KernelBreak(console); last != "" {
			broke = fmt.Sprintf("%s:\n%s", name, last)
		}
		if err := m.Close(); err != nil {
			s.t.t.Logf("machine %s: %v", name, err)
		}
	}
	s.network.Close()
	return broke
}

// ask runs orlopctl or kubectl with the environment of the story, and returns the output. If the
// program fails, the result is a text with the error and the output.
func (s *story) ask(name string, args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.tools, name), args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// explain prints the state of the machine after a failure. It adds the latest state of the cluster
// and of the kubelet to the texts that are printed after all stories.
func (s *story) explain() {
	if s.current == "" {
		return // the story has not contacted a machine yet
	}
	s.t.t.Log(s.ask("orlopctl", "services"))
	for _, service := range []string{"apid", "containerd", "orchestrator-api", "orchestrator-controllers", "orchestrator-node"} {
		s.t.t.Logf("the end of the log of %s:\n%s", service, s.ask("orlopctl", "logs", service, "--tail", "80"))
	}
	for _, words := range []string{
		"orlopctl logs orchestrator-node --tail 15",
		"kubectl get events -A --sort-by=.metadata.creationTimestamp",
		"kubectl get pods -A",
	} {
		args := strings.Fields(words)
		s.t.said = append(s.t.said, lastLines(s.ask(args[0], args[1:]...), 15))
	}
}

// lastLines returns the last n lines of a text. It cuts each line to 300 bytes.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		lines[i] = line[:min(len(line), 300)]
	}
	return strings.Join(lines, "\n")
}

// note adds a line to the timeline of the story. It also prints the line at once, because a story
// takes minutes.
func (s *story) note(format string, args ...any) {
	line := fmt.Sprintf("%7.1fs  %s", s.network.Clock().Since(s.began).Seconds(), fmt.Sprintf(format, args...))
	s.mu.Lock()
	s.timeline = append(s.timeline, line)
	s.mu.Unlock()
	fmt.Println(line)
}

func (s *story) setup(env *testscript.Env) error {
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("ORLOP_CONFIG", filepath.Join(env.WorkDir, "orlop-config"))
	env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
	env.Setenv("OPERATOR", *operator)
	env.Setenv("VERSIONS", *versions)
	env.Setenv("PATH", *binDir+string(os.PathListSeparator)+env.Getenv("PATH"))
	s.env = append([]string(nil), env.Vars...)
	env.Defer(func() {
		if s.t.failed {
			s.explain()
		}
	})
	return nil
}

// start creates a machine of the story and switches it on.
func (s *story) start(ts *testscript.TestScript, spec vm.MachineSpec) {
	spec.Dir = filepath.Join(s.dir, spec.Name)
	spec.NIC.Network = s.network
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := vm.Start(ctx, spec)
	ts.Check(err)
	s.machines[spec.Name] = m
	s.note("machine %s is switched on", spec.Name)
	if !m.Addr().IsValid() {
		return
	}
	ts.Setenv("IP_"+spec.Name, m.Addr().String())
	for _, port := range []int{50000, 6443} {
		f, err := s.network.Forward(0, net.JoinHostPort(m.Addr().String(), strconv.Itoa(port)))
		ts.Check(err)
		_, hostPort, _ := strings.Cut(f.Addr, ":")
		ts.Setenv(fmt.Sprintf("PORT_%s_%d", spec.Name, port), hostPort)
	}
}

func (s *story) machine(ts *testscript.TestScript, name string) *vm.Machine {
	m := s.machines[name]
	if m == nil {
		ts.Fatalf("there is no machine %q; make it with: machine %s", name, name)
	}
	return m
}

// waitConsole waits for a line on the console of the machine, after the position up to which the
// story has read the console. It returns the matches of the pattern.
func (s *story) waitConsole(ts *testscript.TestScript, name, pattern string, deadline time.Duration) []string {
	re, err := regexp.Compile(pattern)
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(deadline))
	defer cancel()
	m := s.machine(ts, name)
	match, end, err := m.Console().WaitFrom(ctx, s.seen[name], re)
	if err != nil {
		ts.Fatalf("console of %s: no line matches %q within %v: %v; its last line is %q", name, pattern, deadline, err, m.ConsoleTail(1))
	}
	s.seen[name] = end
	s.note("console of %s: %s", name, strings.TrimSpace(match[0]))
	return match
}
