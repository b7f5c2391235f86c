// Package rtnltest provides an isolated network for a test: new namespaces, veth pairs, and a
// second namespace for the other end of a veth pair.
//
// The tests behave the same on a development machine and under the product kernel (`go test
// -exec`). They need the veth module, /proc, and the right to create namespaces.
package rtnltest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/jsimonetti/rtnetlink/v2/driver"
	"golang.org/x/sys/unix"
)

const (
	inside = "ORLOP_TEST_INSIDE" // set in the child: the name of its test
	// If the process cannot create namespaces, the tests are skipped if this variable is 1, and
	// fail otherwise.
	without = "ORLOP_TEST_WITHOUT_NAMESPACES"
)

// Isolate runs the calling test again in a child process with its own network and UTS namespaces,
// and fails the calling test if the child fails. It returns true in the child, and false in the
// parent. A test begins with
//
//	if !rtnltest.Isolate(t) {
//		return
//	}
func Isolate(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.count=1", "-test.timeout="+timeout(t).String())
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWUTS, Pdeathsig: unix.SIGKILL}
	if os.Getuid() != 0 { // only root of a user namespace can create a network namespace
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	// The kernel sends Pdeathsig when the thread that started the process ends (prctl(2),
	// PR_SET_PDEATHSIG). Without the lock, Go could start the process from a thread that ends
	// earlier, such as the thread of NewOther.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		if os.Getenv(without) == "1" {
			t.Skipf("%s=1, and the process cannot create namespaces: %v", without, err)
		}
		t.Fatalf("cannot create namespaces: %v; run as root, or set %s=1 to skip these tests", err, without)
	}
	if err != nil {
		t.Fatalf("the test failed in its own namespaces: %v\n%sthe complete output:\n%s", err, failures(string(out)), out)
	}
	t.Logf("%s", out)
	return false
}

// timeout returns the timeout for the child process; 0 means none. It is shorter than the remaining
// time of the calling test. So if the test hangs, the child prints its goroutines before the
// calling test ends.
func timeout(t *testing.T) time.Duration {
	end, limited := t.Deadline()
	if !limited {
		return 0
	}
	return max(time.Until(end)-10*time.Second, time.Second)
}

// failureLines is the maximum number of lines that failures returns for each failed test.
const failureLines = 15

// failures returns an extract of the output of a test binary with -test.v: the name and the last
// lines of each failed test. Isolate prints the extract before the complete output, because CI may
// truncate a long output.
func failures(out string) string {
	var failed []string
	printed := map[string][]string{}
	current := ""
	for line := range strings.SplitSeq(out, "\n") {
		text := strings.TrimLeft(line, " ")
		word, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(text, "=== "), "--- "), " ")
		name, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
		switch {
		case strings.HasPrefix(text, "=== "):
			current = name
		case strings.HasPrefix(text, "--- "):
			if current = ""; word == "FAIL:" {
				failed = append(failed, name)
			}
		default:
			printed[current] = append(printed[current], line)
		}
	}
	var b strings.Builder
	for _, name := range failed {
		b.WriteString(name + ":\n")
		for _, line := range printed[name][max(0, len(printed[name])-failureLines):] {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// Veth creates a veth pair: two connected links with the names a and b.
func Veth(t *testing.T, a, b string) {
	t.Helper()
	c := dial(t)
	peer := &rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Name: b}}
	err := c.Link.New(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{
		Name: a, Info: &rtnetlink.LinkInfo{Kind: "veth", Data: &driver.Veth{PeerInfo: peer}},
	}})
	if err != nil {
		t.Fatalf("cannot create a veth pair: %v (is the veth module loaded?)", err)
	}
}

// NeedKinds skips a test if the kernel lacks a kind of links (IFLA_INFO_KIND). Under Debian's
// kernel, which has all kinds, NeedKinds fails the test instead.
func NeedKinds(t *testing.T, kinds ...string) {
	t.Helper()
	c := dial(t)
	for _, kind := range kinds {
		err := c.Link.New(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Name: "need0", Info: &rtnetlink.LinkInfo{Kind: kind}}})
		switch {
		case err == nil:
			Delete(t, "need0")
		case !errors.Is(err, unix.EOPNOTSUPP):
			// the kernel knows the kind, but rejects a link without settings
		case strings.Contains(release(t), "deb"):
			t.Fatalf("the kernel %s has no links of kind %s: is the module loaded?", release(t), kind)
		default:
			t.Skipf("this kernel has no links of kind %s; the product kernel has them", kind)
		}
	}
}

func release(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Delete deletes a link.
func Delete(t *testing.T, name string) {
	t.Helper()
	c := dial(t)
	if err := c.Link.Delete(index(t, c, name)); err != nil {
		t.Fatalf("link %s: cannot delete: %v", name, err)
	}
}

// NoDetection disables duplicate address detection for links that are created later in this
// namespace, so that their link-local addresses are usable at once.
func NoDetection(t *testing.T) {
	t.Helper()
	if err := noDetection(); err != nil {
		t.Fatal(err)
	}
}

// NoDetection disables duplicate address detection for links that are created in the namespace or
// moved there later.
func (o *Namespace) NoDetection(t *testing.T) {
	t.Helper()
	var err error
	if o.Do(func() { err = noDetection() }); err != nil {
		t.Fatal(err)
	}
}

// noDetection writes the parameters. /proc/sys/net belongs to the network namespace of the calling
// thread.
func noDetection() error {
	var failed error
	for _, which := range []string{"all", "default"} {
		failed = errors.Join(failed, os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/accept_dad", []byte("0"), 0))
	}
	return failed
}

// SetUp sets a link up or down.
func SetUp(t *testing.T, name string, up bool) {
	t.Helper()
	c := dial(t)
	if err := setUp(c, index(t, c, name), up); err != nil {
		t.Fatalf("link %s: cannot set the state up to %v: %v", name, up, err)
	}
}

// AddAddresses adds addresses with their prefix lengths to a link and sets it up. The addresses are
// usable at once, without duplicate address detection.
func AddAddresses(t *testing.T, name string, addresses ...string) {
	t.Helper()
	c := dial(t)
	if err := addAddresses(c, index(t, c, name), addresses); err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
}

// AddAddresses does the same as the function AddAddresses, for a link in the namespace.
func (o *Namespace) AddAddresses(t *testing.T, name string, addresses ...string) {
	t.Helper()
	var err error
	o.Do(func() {
		var c *rtnetlink.Conn
		var i *net.Interface
		if i, err = net.InterfaceByName(name); err != nil { // in the namespace of this thread
			return
		}
		if c, err = rtnetlink.Dial(nil); err != nil {
			return
		}
		defer c.Close()
		err = addAddresses(c, uint32(i.Index), addresses)
	})
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
}

func addAddresses(c *rtnetlink.Conn, link uint32, addresses []string) error {
	for _, text := range addresses {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		m := &rtnetlink.AddressMessage{
			Family: unix.AF_INET, PrefixLength: uint8(p.Bits()), Index: link,
			Attributes: &rtnetlink.AddressAttributes{Address: p.Addr().AsSlice(), Local: p.Addr().AsSlice()},
		}
		if p.Addr().Is6() {
			m.Family, m.Attributes.Flags = unix.AF_INET6, unix.IFA_F_NODAD
		}
		if err := c.Address.New(m); err != nil {
			return fmt.Errorf("cannot add the address %s: %w", p, err)
		}
	}
	return setUp(c, link, true)
}

func setUp(c *rtnetlink.Conn, index uint32, up bool) error {
	m := &rtnetlink.LinkMessage{Index: index, Change: unix.IFF_UP}
	if up {
		m.Flags = unix.IFF_UP
	}
	return c.Link.Set(m)
}

func dial(t *testing.T) *rtnetlink.Conn {
	t.Helper()
	c, err := rtnetlink.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func index(t *testing.T, c *rtnetlink.Conn, name string) uint32 {
	t.Helper()
	links, err := c.Link.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attributes.Name == name {
			return l.Index
		}
	}
	t.Fatalf("link %s: does not exist", name)
	return 0
}

// Namespace is a second network namespace, with a thread that executes functions in it.
type Namespace struct {
	fd   int
	work chan func()
}

// NewOther creates a namespace. It exists until the end of the test.
func NewOther(t *testing.T) *Namespace {
	t.Helper()
	o := &Namespace{work: make(chan func())}
	ready := make(chan error)
	go func() {
		// The thread is never unlocked. Therefore it ends with the goroutine, and the namespace
		// ends with the thread.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			o.fd, err = unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		for f := range o.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("cannot create a network namespace: %v", err)
	}
	t.Cleanup(func() {
		close(o.work)
		unix.Close(o.fd)
	})
	return o
}

// Do runs f in the namespace. Sockets that f opens stay in the namespace. Goroutines that f starts
// do not run in the namespace.
func (o *Namespace) Do(f func()) {
	done := make(chan struct{})
	o.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// MoveLink moves a link into the namespace and sets it up.
func (o *Namespace) MoveLink(t *testing.T, name string) {
	t.Helper()
	c := dial(t)
	err := c.Link.Set(&rtnetlink.LinkMessage{
		Index:      index(t, c, name),
		Attributes: &rtnetlink.LinkAttributes{NetNS: rtnetlink.NetNSForFD(uint32(o.fd))},
	})
	if err != nil {
		t.Fatalf("link %s: cannot move: %v", name, err)
	}
	o.SetUp(t, name, true)
}

// SetUp sets a link of the namespace up or down. If the link is an end of a veth pair, this changes
// the carrier of the other end.
func (o *Namespace) SetUp(t *testing.T, name string, up bool) {
	t.Helper()
	var err error
	o.Do(func() {
		var c *rtnetlink.Conn
		if c, err = rtnetlink.Dial(nil); err != nil {
			return
		}
		defer c.Close()
		var links []rtnetlink.LinkMessage
		if links, err = c.Link.List(); err != nil {
			return
		}
		err = fmt.Errorf("does not exist")
		for _, l := range links {
			if l.Attributes.Name == name {
				err = setUp(c, l.Index, up)
			}
		}
	})
	if err != nil {
		t.Fatalf("link %s in the other namespace: %v", name, err)
	}
}
