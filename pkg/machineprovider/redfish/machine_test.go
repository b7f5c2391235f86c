package redfish

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/machineprovider"
	"github.com/orlop-os/orlop/pkg/machineprovider/providertest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/vm/redfish/redfishtest"
)

// machine returns the Machine that a configuration describes.
func machine(t *testing.T, c Config) *Machine {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// config returns a valid configuration for a system of a service.
func config(s redfishtest.Service, system string) Config {
	return Config{Name: system, Endpoint: s.URL, System: system, User: redfishtest.User, Password: redfishtest.Password, Fingerprint: pki.Fingerprint(s.Certificate)}
}

// closedPort returns an address without a server.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return "https://" + l.Addr().String()
}

// TestConformance runs the checks of providertest against the Redfish service of package vm. The
// machine w1 has all boot devices, and w2 has only a disk.
func TestConformance(t *testing.T) {
	s := redfishtest.Serve(t, redfishtest.NewSystem("w1"), redfishtest.NewBareSystem("w2"))
	other := redfishtest.Serve(t, redfishtest.NewSystem("w1"))
	for _, name := range []string{"w1", "w2"} {
		t.Run(name, func(t *testing.T) {
			right := config(s, name)
			denied, foreign, dead := right, right, right
			denied.Password = "battery-staple"
			foreign.Fingerprint = "sha256:" + strings.Repeat("0", 64)
			dead.Endpoint = closedPort(t)
			providertest.Run(t, providertest.Subject{
				Machine: machine(t, right), Serial: "SN-" + name, Secrets: []string{redfishtest.Password, denied.Password}, Medium: s.Image, Shutdown: true,
				Denied: machine(t, denied), Foreign: machine(t, foreign), Dead: machine(t, dead),
			})
		})
	}
	// A controller with a single system needs no ID. A CA can replace the fingerprint.
	c := config(other, "")
	c.Fingerprint, c.CA = "", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate.Raw})
	if d, err := machine(t, c).Describe(t.Context()); err != nil || d.Serial != "SN-w1" || d.MemoryMiB != 2048 || d.CPUs != 2 || d.Manufacturer != "QEMU" {
		t.Errorf("%+v, %v", d, err)
	}
	for system, want := range map[string]string{"": "name the ID of one of its systems: w1, w2", "w9": `0 of them with the ID "w9"`} {
		if _, err := machine(t, config(s, system)).Describe(t.Context()); machineprovider.KindOf(err) != machineprovider.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("system %q: %v, want %q", system, err, want)
		}
	}
	wrong := config(s, "w1")
	wrong.Fingerprint, wrong.CA = "", []byte(operatorCA(t))
	if _, err := machine(t, wrong).Describe(t.Context()); machineprovider.KindOf(err) != machineprovider.Untrusted {
		t.Errorf("error with another CA: %v", err)
	}
}

func operatorCA(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewCA("another", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return string(ca.CertPEM())
}

func TestBrokenMachine(t *testing.T) {
	system := redfishtest.NewSystem("w1")
	s := redfishtest.Serve(t, system)
	system.Break()
	err := machine(t, config(s, "w1")).SetPower(t.Context(), machineprovider.On)
	if machineprovider.KindOf(err) != machineprovider.Conflict || err.Error() != "machine w1: cannot switch on: the controller answered 409 Conflict: "+
		"machine w1: the power supply is broken: wait until the machine has ended its present operation, and try again" {
		t.Errorf("%v", err)
	}
	// The machines of package vm get the address of their boot image only by DHCP, so the service
	// rejects a URL.
	err = machine(t, config(s, "w1")).SetBoot(t.Context(), machineprovider.Boot{Device: machineprovider.HTTP, URL: "http://10.0.0.1/netboot.efi"})
	if machineprovider.KindOf(err) != machineprovider.Rejected {
		t.Errorf("%v", err)
	}
	err = machine(t, config(s, "w1")).SetBoot(t.Context(), machineprovider.Boot{Device: machineprovider.PXE, URL: "http://10.0.0.1/netboot.efi"})
	if machineprovider.KindOf(err) != machineprovider.Invalid {
		t.Errorf("%v", err)
	}
	err = machine(t, config(s, "w1")).InsertMedium(t.Context(), "http://10.0.0.1/a.iso")
	if machineprovider.KindOf(err) != machineprovider.Rejected || !strings.Contains(err.Error(), "use file:///PATH") {
		t.Errorf("%v", err)
	}
}

func TestInvalidConfiguration(t *testing.T) {
	good := Config{Endpoint: "https://10.0.0.1", User: "admin", Password: "x", Fingerprint: "sha256:" + strings.Repeat("0", 64)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"the endpoint is not":                    func(c *Config) { c.Endpoint = "http://10.0.0.1" },
		"the endpoint is":                        func(c *Config) { c.Endpoint = "https://admin:x@10.0.0.1" },
		"endpoint":                               func(c *Config) { c.Endpoint = "https://10.0.0.1/redfish" },
		"the user or the password is empty":      func(c *Config) { c.Password = "" },
		"either a fingerprint or a CA":           func(c *Config) { c.Fingerprint = "" },
		"expected either a fingerprint or a CA:": func(c *Config) { c.CA = []byte("x") },
		"the CA is no certificate":               func(c *Config) { c.Fingerprint, c.CA = "", []byte("x") },
		"fingerprint":                            func(c *Config) { c.Fingerprint = "sha256:1" },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); machineprovider.KindOf(err) != machineprovider.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", bad, err, want)
		}
	}
}

// hostile serves the service root, and passes requests for systems to the handler. It returns a
// Machine that uses this server.
func hostile(t *testing.T, handler http.HandlerFunc) *Machine {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/redfish/v1/", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"@odata.id": "/redfish/v1/"})
	})
	mux.HandleFunc("/redfish/v1/Systems", handler)
	mux.HandleFunc("/redfish/v1/Systems/", handler)
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return machine(t, Config{Name: "w1", Endpoint: s.URL, User: "admin", Password: "secret", Fingerprint: pki.Fingerprint(s.Certificate()), Timeout: 30 * time.Second})
}

// TestHostileController uses controllers that an attacker controls. Describe must respect its
// limits and send no request to another host. Its error must contain no escape sequence and no
// password.
func TestHostileController(t *testing.T) {
	stranger := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("another host got a request")
	}))
	defer stranger.Close()
	address := strings.TrimPrefix(stranger.URL, "https://")
	system := func(w http.ResponseWriter, r *http.Request, properties string) {
		if r.URL.Path == "/redfish/v1/Systems" {
			fmt.Fprint(w, `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"}]}`)
			return
		}
		fmt.Fprintf(w, `{"@odata.id":"/redfish/v1/Systems/1"%s}`, properties)
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		kind    machineprovider.Kind
		want    string
	}{
		"a redirect to another host": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, stranger.URL, http.StatusFound) }, machineprovider.Untrusted, "refers to another host"},
		"endless redirects":          {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, machineprovider.Unreachable, "redirects more than 3 times"},
		"a link to another host": {func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"Members":[{"@odata.id":"@%s/x"}]}`, address)
		}, machineprovider.Untrusted, "refers to another host"},
		"a large answer": {func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"Members":[`+strings.Repeat(" ", maxAnswer)+`]}`)
		}, machineprovider.Rejected, "larger than 4194304 bytes"},
		"many members": {func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/media") {
				fmt.Fprintf(w, `{"Members":[%s{"@odata.id":"/redfish/v1/Systems/1"}]}`, strings.Repeat(`{"@odata.id":"/redfish/v1/Systems/2"},`, 100))
				return
			}
			system(w, r, `,"VirtualMedia":{"@odata.id":"/redfish/v1/Systems/media"}`)
		}, machineprovider.Rejected, "more than 64 requests"},
		"an answer that is not JSON": {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "\x1b[31mnot JSON") }, machineprovider.Rejected, "cannot read the answer"},
		"an error with an escape sequence": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "\x1b[31m"+strings.Repeat("x", 1000))
		}, machineprovider.Rejected, "500 Internal Server Error: ?[31mxxx"},
	} {
		_, err := hostile(t, c.handler).Describe(t.Context())
		if machineprovider.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%s), want %q (%s)", name, err, machineprovider.KindOf(err), c.want, c.kind)
		}
		if err != nil && (len(err.Error()) > 700 || strings.Contains(err.Error(), "\x1b") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: the error has %d bytes, an escape sequence or the password: %q", name, len(err.Error()), err)
		}
	}
}

// TestSlowController checks that an operation fails at its deadline.
func TestSlowController(t *testing.T) {
	end := make(chan struct{})
	m := hostile(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})
	defer close(end)
	m.config.Timeout = 200 * time.Millisecond
	began := time.Now()
	_, err := m.Describe(t.Context())
	if machineprovider.KindOf(err) != machineprovider.Unreachable || !strings.Contains(err.Error(), "no answer in time") || time.Since(began) > 10*time.Second {
		t.Errorf("the operation ended after %s: %v", time.Since(began), err)
	}
}

// TestReadPower checks that the power can be read from a controller that rejects the requests for
// the CD drive, for example because the user of the configuration may only operate the power.
func TestReadPower(t *testing.T) {
	m := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redfish/v1/Systems":
			fmt.Fprint(w, `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"}]}`)
		case "/redfish/v1/Systems/1":
			fmt.Fprint(w, `{"@odata.id":"/redfish/v1/Systems/1","UUID":"A1","PowerState":"Off","VirtualMedia":{"@odata.id":"/redfish/v1/Systems/1/VirtualMedia"}}`)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	if d, err := m.ReadPower(t.Context()); err != nil || d.Power != machineprovider.StateOff || d.UUID != "a1" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := m.Describe(t.Context()); machineprovider.KindOf(err) != machineprovider.Unauthorized {
		t.Errorf("the controller accepts the requests for the CD drive: %v", err)
	}
}
