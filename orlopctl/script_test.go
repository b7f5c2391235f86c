package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	agecrypt "filippo.io/age"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	"github.com/orlop-os/orlop/pkg/pki"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"orlopctl": main})
}

// TestScripts runs the scripts in testdata/script. They use the commands of testscript, and these:
//
//	machine OPERATOR-CA [ADDRESS]  start a fake machine that trusts the CA in this file; an empty
//	                               file starts an unclaimed machine; sets $ENDPOINT, $FINGERPRINT
//	                               and $CODE; other machines of the script reach it by its ADDRESS
//	cert DIR NAME ROLE TTL         write NAME.crt and NAME.key, issued by the CA in DIR; with a
//	                               negative TTL, the certificate has expired
//	exits STATUS COMMAND…          run a command that must end with this exit status
//	due FILE                       make the certificates in a file of contexts due for renewal
//	mode FILE 0600                 check the permissions of a file
//	agekey FILE                    write a new age key; sets $RECIPIENT to its public key
//	unpack FILE DIR [KEY]          decrypt a support bundle, if there is a key, and unpack it
//	decrypt FILE KEY TO            decrypt FILE with an age key, and write the file TO
//	release DIR VERSION            write a bundle, its provenance and keys.pem, the key that has
//	                               signed both of them and the version of every fake machine
//	packets FILE                   print the packets of a pcap file
//	left METHOD LEAST MOST         check the time until the deadline that the last call of METHOD
//	                               had when the machine received it: between LEAST and MOST
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("KUBECONFIG", "")
			e.Setenv("ORLOP_CONFIG", "")
			e.Values[networkKey{}] = &machinetest.Network{}
			e.Values[sessionKey{}] = &session{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"machine": cmdMachine, "cert": cmdCert, "exits": cmdExits, "mode": cmdMode, "due": cmdDue, "agekey": cmdAgeKey, "unpack": cmdUnpack,
			"packets": cmdPackets, "decrypt": cmdDecrypt, "left": cmdLeft, "release": cmdRelease,
		},
	})
}

// networkKey is the key in Env.Values of the machinetest.Network of a script.
type networkKey struct{}

// sessionKey is the key in Env.Values of the *session of a script.
type sessionKey struct{}

type session struct{ machine *machinetest.Machine } // the machine that was started last

// cmdLeft checks the time until the deadline of the last call of a method.
func cmdLeft(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: left METHOD LEAST MOST")
	}
	least, err := time.ParseDuration(args[1])
	ts.Check(err)
	most, err := time.ParseDuration(args[2])
	ts.Check(err)
	if left := ts.Value(sessionKey{}).(*session).machine.Left(args[0]); left < least || left > most {
		ts.Fatalf("%s has %v; expected %v to %v", args[0], left, least, most)
	}
}

// cmdRelease writes the files of a release.
func cmdRelease(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: release DIR VERSION")
	}
	ts.Check(machinetest.WriteRelease(ts.MkAbs(args[0]), args[1]))
}

func cmdMachine(ts *testscript.TestScript, _ bool, args []string) {
	fake, err := machinetest.Start([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	ts.Defer(func() {
		if err := fake.Stop(); err != nil {
			ts.Logf("the fake machine: %v", err)
		}
	})
	if len(args) > 1 {
		node, err := netip.ParseAddr(args[1])
		ts.Check(err)
		fake.Join(ts.Value(networkKey{}).(*machinetest.Network), node)
	}
	ts.Value(sessionKey{}).(*session).machine = fake
	ts.Setenv("ENDPOINT", fake.Address)
	ts.Setenv("FINGERPRINT", fake.Fingerprint)
	ts.Setenv("CODE", string(fake.Code))
}

func cmdCert(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ca, err := gen.ReadOperator(dir)
	ts.Check(err)
	ttl, err := time.ParseDuration(args[3])
	ts.Check(err)
	spec := pki.Spec{CN: args[1], O: []string{args[2]}, Usage: pki.Client, TTL: ttl}
	if ttl < 0 {
		spec.TTL, spec.Now = -ttl, time.Now().Add(2*ttl)
	}
	leaf, err := ca.Issue(spec)
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(dir, args[1]+".crt"), leaf.CertPEM(), 0o600))
	ts.Check(os.WriteFile(filepath.Join(dir, args[1]+".key"), leaf.KeyPEM(), 0o600))
}

func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d; stderr:\n%s", got, want, ts.ReadFile("stderr"))
	}
}

func cmdMode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.ParseUint(args[1], 8, 32)
	ts.Check(err)
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := info.Mode().Perm(); got != os.FileMode(want) {
		ts.Fatalf("%s has the mode %04o, want %04o", args[0], got, want)
	}
}

// cmdDue makes the certificates in a file of contexts due for renewal.
func cmdDue(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: due FILE")
	}
	file := &contexts.File{}
	ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[0])), file))
	for name, c := range file.Contexts {
		c.RenewAfter = time.Now().Add(-time.Second)
		file.Contexts[name] = c
	}
	text, err := yaml.Marshal(file)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
}

func cmdAgeKey(ts *testscript.TestScript, _ bool, args []string) {
	key, err := agecrypt.GenerateX25519Identity()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(key.String()+"\n"), 0o600))
	ts.Setenv("RECIPIENT", key.Recipient().String())
}

func cmdUnpack(ts *testscript.TestScript, _ bool, args []string) {
	bundle := []byte(ts.ReadFile(args[0]))
	if len(args) > 2 {
		keys, err := agecrypt.ParseIdentities(strings.NewReader(ts.ReadFile(args[2])))
		ts.Check(err)
		bundle, err = decrypted(bundle, keys...)
		ts.Check(err)
	}
	files, err := unpacked(bundle)
	ts.Check(err)
	for name, content := range files {
		file := filepath.Join(ts.MkAbs(args[1]), name)
		ts.Check(os.MkdirAll(filepath.Dir(file), 0o700))
		ts.Check(os.WriteFile(file, []byte(content), 0o600))
	}
}

func cmdDecrypt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: decrypt FILE KEY TO")
	}
	keys, err := agecrypt.ParseIdentities(strings.NewReader(ts.ReadFile(args[1])))
	ts.Check(err)
	text, err := decrypted([]byte(ts.ReadFile(args[0])), keys...)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), text, 0o600))
}

// cmdPackets prints a line for each packet of a pcap file.
func cmdPackets(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: packets FILE")
	}
	file, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer file.Close()
	pcap, err := pcapgo.NewReader(file)
	ts.Check(err)
	for {
		data, about, err := pcap.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return
		}
		ts.Check(err)
		p := gopacket.NewPacket(data, pcap.LinkType(), gopacket.Default)
		from, to := p.NetworkLayer().NetworkFlow().Endpoints()
		flow := p.TransportLayer().TransportFlow()
		_, err = fmt.Fprintf(ts.Stdout(), "%s %d of %d bytes %s:%s->%s:%s\n", about.Timestamp.UTC().Format("2006-01-02T15:04:05.000000000Z"),
			about.CaptureLength, about.Length, from, flow.Src(), to, flow.Dst())
		ts.Check(err)
	}
}
