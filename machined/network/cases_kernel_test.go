//go:build linux

package network

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// newKernel creates veth links, and returns the Kernel of this network namespace. Its state is then
// the same as that of a new fake with these links.
func newKernel(t *testing.T, links ...string) *Kernel {
	t.Helper()
	if err := unix.Sethostname([]byte("localhost")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	k, err := Open(FilePaths{filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts"), filepath.Join(dir, "hostname")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	for _, name := range links {
		rtnltest.Veth(t, name, "peer-"+name)
		rtnltest.SetUp(t, "peer-"+name, true)
		for key, value := range newFake(veth(name)).have.Links[1].Sysctls {
			if err := os.WriteFile(sysctlPath(key), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return k
}

func (k *Kernel) remembered() *memory { return k.memory }

// need skips a test if the kernel does not support one of the kinds of links. The kind
// kindFiltering means VLAN filtering of bridges.
func need(t *testing.T, kinds ...string) {
	t.Helper()
	filtering := slices.Index(kinds, kindFiltering)
	if filtering < 0 {
		rtnltest.NeedKinds(t, kinds...)
		return
	}
	rtnltest.NeedKinds(t, slices.Delete(slices.Clone(kinds), filtering, filtering+1)...)
	k := newKernel(t)
	op := Op{Verb: AddLink, Link: "need0", Index: missingIndex, Change: Change{To: Virtual{Bridge: &Bridge{Filtering: true}}}}
	if err := k.Do(op); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no VLAN filtering; run the test with the product kernel")
	} else if err != nil {
		t.Fatal(err)
	}
	rtnltest.Delete(t, "need0")
}

// TestGoldenKernel runs the cases of the golden files on the kernel, and compares the operations
// with the golden files. It omits cases with settings of real hardware.
func TestGoldenKernel(t *testing.T) {
	for _, c := range cases() {
		if c.hardware {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if !rtnltest.Isolate(t) {
				return
			}
			need(t, c.needs...)
			var names []string
			for _, l := range c.links {
				names = append(names, l.Name)
			}
			got := c.run(t, newKernel(t, names...))
			want, err := os.ReadFile(c.golden())
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the kernel:\n%s\nthe golden file (%s):\n%s", got, c.golden(), want)
			}
		})
	}
}

// TestLawsKernel checks the two laws (see checkLaws) on the kernel.
func TestLawsKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	r := rand.New(rand.NewPCG(7, 7))
	links := []string{"eth0", "eth1", "eth2"}
	checkLaws(t, newKernel(t, links...), r, links, 80, randomStage)
}

// checkVirtualLaws checks the two laws on the kernel, and that the return to a former configuration
// restores the former state (see checkReturn).
func checkVirtualLaws(t *testing.T, r *rand.Rand, random func(*rand.Rand, []string) stage) {
	links := []string{"eth0", "eth1", "eth2"}
	k := newKernel(t, links...)
	checkLaws(t, k, r, links, 60, random)
	for range 20 {
		checkReturn(t, k, r, links, random)
	}
}

// TestVirtualLawsKernel checks the two laws on the kernel, with bonds, VLANs, VRFs, dummies and
// tunnels.
func TestVirtualLawsKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	need(t, kindBond, kindVLAN, kindVRF, kindDummy, kindWireGuard)
	r := rand.New(rand.NewPCG(7, 8))
	checkVirtualLaws(t, r, randomVirtualStage)
}

// TestBridgeLawsKernel checks the two laws on the kernel, with bridges, rules and routes with
// several next hops.
func TestBridgeLawsKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	need(t, kindBridge)
	r := rand.New(rand.NewPCG(7, 9))
	checkVirtualLaws(t, r, randomBridgeStage)
}

// TestRefusedHardwareKernel checks the error for a setting that the driver of a link does not have.
// The driver veth has no pause frames, no virtual functions and no wake-on-LAN.
func TestRefusedHardwareKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	k := newKernel(t, "eth0")
	for name, value := range map[string]string{HardwarePause: "rx", HardwareFunctions: "4", HardwareWake: "magic", HardwareOffload + "no-such-feature": "on"} {
		op := Op{Verb: SetHardware, Link: "eth0", Index: 1, Name: name, Value: value}
		if err := k.Do(op); err == nil || !strings.Contains(err.Error(), "the driver has no such setting") {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestLargeMTU checks that explain adds the cause to the error ERANGE, which the kernel returns for
// a VLAN with a larger MTU than its parent link, and keeps the text of another error.
func TestLargeMTU(t *testing.T) {
	for text, err := range map[string]error{"the link below has a smaller MTU": unix.ERANGE, "": unix.EINVAL} {
		op := Op{Verb: SetLink, Link: "v", MTU: 9000}
		if got := op.explain(err).Error(); !strings.Contains(got, text) || !strings.Contains(got, err.Error()) {
			t.Errorf("%v: %s", err, got)
		}
	}
}
