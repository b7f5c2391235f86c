package integration

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/vm"
	"github.com/orlop-os/orlop/vm/redfish"
)

// board is a machine with a management controller (BMC). It records the operations of the power
// switch of the machine.
type board struct {
	*vm.Machine
	mu  sync.Mutex
	did []string
}

func (b *board) note(operation string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.did = append(b.did, operation)
}

func (b *board) PowerOn(ctx context.Context) error {
	b.note("on")
	return b.Machine.PowerOn(ctx)
}

func (b *board) PowerCut() {
	b.note("off")
	b.Machine.PowerCut()
}

func (b *board) PowerButton(ctx context.Context) error {
	b.note("button")
	return b.Machine.PowerButton(ctx)
}

func (b *board) Restart(ctx context.Context) error {
	b.note("restart")
	return b.Machine.Restart(ctx)
}

// bmcVerb starts a Redfish service for the power switches of machines, or prints the operations of
// a power switch.
func (s *story) bmcVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "bmc start FILE NAME… | did NAME"
	need(ts, neg, args, 2, -1, usage)
	switch {
	case args[0] == "start" && len(args) > 2 && s.boards == nil:
		s.startBMC(ts, args[1], args[2:])
	case args[0] == "did" && len(args) == 2 && s.boards[args[1]] != nil:
		b := s.boards[args[1]]
		b.mu.Lock()
		defer b.mu.Unlock()
		_, err := fmt.Fprintln(ts.Stdout(), strings.Join(b.did, " "))
		ts.Check(err)
	default:
		ts.Fatalf("usage: %s", usage)
	}
}

// startBMC starts the Redfish service, and writes a Secret with the access to the service for each
// machine. If the hardware of a machine has a UUID, its Secret has this UUID in place of the
// machine's name, as the Secret of a host of the inventory.
func (s *story) startBMC(ts *testscript.TestScript, file string, names []string) {
	const user, password = "orlop", "the-password-of-the-controllers"
	s.boards = map[string]*board{}
	var systems []redfish.System
	for _, name := range names {
		s.boards[name] = &board{Machine: s.machine(ts, name)}
		systems = append(systems, s.boards[name])
	}
	host, err := s.network.NewHost("bmc", netip.Addr{})
	ts.Check(err)
	service := redfish.New("6f1f6c2e-0000-4000-8000-0000000000bc", user, password, func() []redfish.System { return systems })
	ca, err := serveTLS(host, service.HTTP().Handler)
	ts.Check(err)
	var items []any
	for _, name := range names {
		data := map[string]any{"endpoint": "https://" + host.Addr().String(), "system": name, "username": user, "password": password, "ca.crt": string(ca)}
		if uuid := s.boards[name].Hardware().UUID; uuid != "" {
			data["uuid"] = uuid
		} else {
			data["machine"] = name
		}
		items = append(items, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": "orlop.dev/power-switch", "metadata": map[string]any{"name": name + "-power", "namespace": "kube-system"},
			"stringData": data,
		})
	}
	secrets, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), secrets, 0o600))
	s.note("the controllers of %s are at %s", strings.Join(names, ", "), host.Addr())
}

// hangVerb stops the processors of a machine.
func (s *story) hangVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "hang NAME")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(s.machine(ts, args[0]).Pause(ctx))
	s.note("machine %s hangs", args[0])
}
