package redfish_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/orlop-os/orlop/vm/redfish"
	"github.com/orlop-os/orlop/vm/redfish/redfishtest"
)

// client returns an HTTP client that trusts only the certificate of the service.
func client(s redfishtest.Service) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate)
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
}

func connect(t *testing.T, s redfishtest.Service, basic bool) *gofish.APIClient {
	t.Helper()
	c, err := gofish.ConnectContext(t.Context(), gofish.ClientConfig{Endpoint: s.URL, Username: redfishtest.User, Password: redfishtest.Password,
		BasicAuth: basic, HTTPClient: client(s), NoModifyTransport: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// system returns the present state of a system.
func system(t *testing.T, c *gofish.APIClient, name string) *schemas.ComputerSystem {
	t.Helper()
	all, err := c.Service.Systems()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.ID == name {
			return s
		}
	}
	t.Fatalf("no system %s among %d", name, len(all))
	return nil
}

// TestPower operates a machine with gofish, the client library of the provider for real machines.
func TestPower(t *testing.T) {
	machine := redfishtest.NewSystem("w1")
	c := connect(t, redfishtest.Serve(t, machine, redfishtest.NewBareSystem("w2")), false)
	s := system(t, c, "w1")
	if s.PowerState != schemas.OffPowerState || s.SerialNumber != "SN-w1" || s.UUID != "6f1f6c2e-0000-4000-8000-000000000001" ||
		*s.MemorySummary.TotalSystemMemoryGiB != 2 || *s.ProcessorSummary.LogicalProcessorCount != 2 {
		t.Errorf("the state of the new system is %+v", s)
	}
	for _, step := range []struct {
		reset schemas.ResetType
		want  schemas.PowerState
		err   string
	}{
		{schemas.GracefulShutdownResetType, schemas.OffPowerState, "it is off: use On"},
		{schemas.ForceRestartResetType, schemas.OffPowerState, "it is off: use On"},
		{schemas.ForceOffResetType, schemas.OffPowerState, ""},
		{schemas.OnResetType, schemas.OnPowerState, ""},
		{schemas.OnResetType, schemas.OnPowerState, ""},
		{schemas.ForceRestartResetType, schemas.OnPowerState, ""},
		{schemas.GracefulShutdownResetType, schemas.OffPowerState, ""},
		{schemas.OnResetType, schemas.OnPowerState, ""},
		{schemas.ForceOffResetType, schemas.OffPowerState, ""},
	} {
		_, err := s.Reset(step.reset)
		if step.err == "" && err != nil || step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)) {
			t.Errorf("Reset with %s returns %v, want %q", step.reset, err, step.err)
		}
		if got := system(t, c, "w1").PowerState; got != step.want {
			t.Errorf("the power state after %s is %s, want %s", step.reset, got, step.want)
		}
	}
	if n := len(machine.Booted()); n != 3 {
		t.Errorf("the machine has booted %d times, want 3: a second On must not boot the machine again", n)
	}
	machine.Break()
	if _, err := s.Reset(schemas.OnResetType); err == nil || !strings.Contains(err.Error(), "power supply is broken") {
		t.Errorf("the error of a broken machine is %v", err)
	}
}

// TestBootOverride sets the boot device of a machine for one boot and for all boots, and checks the
// devices from which the machine boots. Invalid settings must change nothing.
func TestBootOverride(t *testing.T) {
	machine := redfishtest.NewSystem("w1")
	c := connect(t, redfishtest.Serve(t, machine, redfishtest.NewBareSystem("w2")), true)
	s := system(t, c, "w1")
	set := func(enabled schemas.BootSourceOverrideEnabled, target schemas.BootSource) {
		t.Helper()
		if err := s.SetBoot(&schemas.Boot{BootSourceOverrideEnabled: enabled, BootSourceOverrideTarget: target}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(enabled schemas.BootSourceOverrideEnabled, target schemas.BootSource) {
		t.Helper()
		if b := system(t, c, "w1").Boot; b.BootSourceOverrideEnabled != enabled || b.BootSourceOverrideTarget != target {
			t.Errorf("the override is %s for %s, want %s for %s", b.BootSourceOverrideEnabled, b.BootSourceOverrideTarget, enabled, target)
		}
	}
	check("Disabled", "None")
	set("Once", schemas.PxeBootSource)
	check("Once", "Pxe")
	s.Reset(schemas.OnResetType)
	check("Disabled", "None")
	s.Reset(schemas.ForceRestartResetType)
	set("Continuous", schemas.UefiHTTPBootSource)
	s.Reset(schemas.ForceRestartResetType)
	check("Continuous", "UefiHttp")
	set("Disabled", "")
	check("Disabled", "None")
	set("Once", schemas.CdBootSource)
	set("Once", schemas.NoneBootSource)
	check("Disabled", "None")
	if got, want := machine.Booted(), []redfish.Target{"Pxe", "None", "UefiHttp"}; !slices.Equal(got, want) {
		t.Errorf("the machine booted from %v, want %v", got, want)
	}
	for _, bad := range []schemas.Boot{
		{BootSourceOverrideEnabled: "Twice", BootSourceOverrideTarget: "Pxe"},
		{BootSourceOverrideEnabled: "Once", BootSourceOverrideTarget: "Floppy"},
		{BootSourceOverrideEnabled: "Once", BootSourceOverrideTarget: "Pxe", BootSourceOverrideMode: "Legacy"},
		{BootSourceOverrideEnabled: "Once", BootSourceOverrideTarget: "UefiHttp", HTTPBootURI: "http://10.0.0.1/a.efi"},
	} {
		if err := s.SetBoot(&bad); err == nil {
			t.Errorf("SetBoot accepts %+v", bad)
		}
		check("Disabled", "None")
	}
	if got := system(t, c, "w2").Boot.AllowableBootSourceOverrideTargetValues; !slices.Equal(got, []schemas.BootSource{"None", "Hdd"}) {
		t.Errorf("the boot devices of a machine with only a disk are %v", got)
	}
}

// TestVirtualMedia inserts a file into the CD drive of a machine and ejects the file. It also
// checks the errors for invalid files.
func TestVirtualMedia(t *testing.T) {
	machine := redfishtest.NewSystem("w1")
	service := redfishtest.Serve(t, machine, redfishtest.NewBareSystem("w2"))
	c := connect(t, service, true)
	managers, err := c.Service.Managers()
	if err != nil || len(managers) != 2 {
		t.Fatalf("the service has %d managers, %v, want 2", len(managers), err)
	}
	drive := func() *schemas.VirtualMedia {
		t.Helper()
		media, err := managers[0].VirtualMedia()
		if err != nil || len(media) != 1 {
			t.Fatalf("the manager has %d drives, %v, want one", len(media), err)
		}
		return media[0]
	}
	if cd := drive(); *cd.Inserted || !cd.SupportsMediaInsert {
		t.Errorf("the state of the empty drive is %+v", cd)
	}
	insert := func(image string) error {
		_, err := drive().InsertMedia(&schemas.VirtualMediaInsertMediaParameters{Image: image})
		return err
	}
	if err := insert(service.Image); err != nil {
		t.Fatal(err)
	}
	if cd := drive(); !*cd.Inserted || cd.Image != service.Image || "file://"+machine.Medium() != service.Image {
		t.Errorf("the state of the drive with a medium is %+v", cd)
	}
	for image, want := range map[string]string{
		"http://10.0.0.1/orlop.iso": "use file:///PATH",
		"file://other/orlop.iso":    "use file:///PATH",
		"file:///nonexistent/a.iso": "no such file",
		"file://" + t.TempDir():     "not a regular file",
		"%zz":                       "use file:///PATH",
	} {
		if err := insert(image); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the insertion of %q returns %v, want an error with %q", image, err, want)
		}
	}
	for range 2 { // the second time has no effect
		if _, err := drive().EjectMedia(); err != nil || machine.Medium() != "" {
			t.Errorf("EjectMedia returns %v, and the medium in the drive is %q, want none", err, machine.Medium())
		}
	}
	if media, err := managers[1].VirtualMedia(); err != nil || len(media) != 0 {
		t.Errorf("a machine without a drive: %d drives, %v", len(media), err)
	}
}

// request sends a request with the password and returns its status and its body.
func request(t *testing.T, s redfishtest.Service, password, method, path, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		q.SetBasicAuth(redfishtest.User, password)
	}
	resp, err := client(s).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestRejected checks the answers to requests without credentials, for unknown resources and with
// invalid bodies. No request has an effect on the machine.
func TestRejected(t *testing.T) {
	machine := redfishtest.NewSystem("w1")
	s := redfishtest.Serve(t, machine)
	const reset = "/redfish/v1/Systems/w1/Actions/ComputerSystem.Reset"
	for _, c := range []struct {
		password, method, path, body string
		status                       int
		text                         string
	}{
		{"", "GET", "/redfish/v1/", "", 200, `"RedfishVersion"`},
		{"", "GET", "/redfish", "", 200, `"v1"`},
		{"", "GET", "/redfish/v1/Systems", "", 401, "no valid password"},
		{"wrong", "GET", "/redfish/v1/Systems", "", 401, "no valid password"},
		{"", "POST", reset, `{"ResetType":"On"}`, 401, "no valid password"},
		{"", "POST", "/redfish/v1/SessionService/Sessions", `{"UserName":"admin","Password":"wrong"}`, 401, "password is wrong"},
		{"", "DELETE", "/redfish/v1/SessionService/Sessions/1", "", 401, "no valid password"},
		{redfishtest.Password, "DELETE", "/redfish/v1/SessionService/Sessions/1", "", 404, "no such session"},
		{redfishtest.Password, "GET", "/redfish/v1/Systems/w9", "", 404, "no such system"},
		{redfishtest.Password, "GET", "/redfish/v1/Chassis", "", 404, "begin at /redfish/v1"},
		{redfishtest.Password, "DELETE", "/redfish/v1/Systems/w1", "", 404, "begin at /redfish/v1"},
		{redfishtest.Password, "POST", reset, `{"ResetType":"Explode"}`, 400, "expected one of On"},
		{redfishtest.Password, "POST", reset, `{"ResetType":"On","Delay":1}`, 400, "Delay"},
		{redfishtest.Password, "POST", reset, `ResetType: On`, 400, "not JSON"},
		{redfishtest.Password, "POST", reset, `"` + strings.Repeat("x", 70<<10) + `"`, 400, "at most 65536 bytes"},
	} {
		status, text := request(t, s, c.password, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%s %s %.60s: the answer is %d %s; want %d and %q", c.method, c.path, c.body, status, text, c.status, c.text)
		}
	}
	if machine.Running() {
		t.Error("a rejected request switched the machine on")
	}
}

// stuck is a machine with a power switch that does not answer.
type stuck struct{ *redfishtest.System }

func (stuck) PowerOn(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestStuck checks that a client waits at most a minute for a power switch that does not answer.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		systems := func() []redfish.System { return []redfish.System{stuck{redfishtest.NewSystem("w1")}} }
		q := httptest.NewRequest("POST", "/redfish/v1/Systems/w1/Actions/ComputerSystem.Reset", strings.NewReader(`{"ResetType":"On"}`))
		q.SetBasicAuth(redfishtest.User, redfishtest.Password)
		answer, began := httptest.NewRecorder(), time.Now()
		redfish.New("", redfishtest.User, redfishtest.Password, systems).HTTP().Handler.ServeHTTP(answer, q)
		if took := time.Since(began); answer.Code != http.StatusConflict || !strings.Contains(answer.Body.String(), "deadline exceeded") || took != time.Minute {
			t.Errorf("the answer after %s is %d %s, want a conflict with an exceeded deadline after a minute", took, answer.Code, answer.Body)
		}
	})
}

// TestNoPassword checks that a service without a password rejects an empty password.
func TestNoPassword(t *testing.T) {
	service := redfish.New("", redfishtest.User, "", func() []redfish.System { return nil }).HTTP().Handler
	for path, body := range map[string]string{
		"GET /redfish/v1/Systems":                  "",
		"POST /redfish/v1/SessionService/Sessions": `{"UserName":"` + redfishtest.User + `","Password":""}`,
	} {
		method, path, _ := strings.Cut(path, " ")
		q := httptest.NewRequest(method, path, strings.NewReader(body))
		q.SetBasicAuth(redfishtest.User, "")
		answer := httptest.NewRecorder()
		if service.ServeHTTP(answer, q); answer.Code != http.StatusUnauthorized {
			t.Errorf("the answer to %s %s is %d %s, want 401", method, path, answer.Code, answer.Body)
		}
	}
}

// TestSessions checks that the number of sessions is limited, and that an ended session is invalid.
func TestSessions(t *testing.T) {
	s := redfishtest.Serve(t, redfishtest.NewSystem("w1"))
	var all []*gofish.APIClient
	for range 16 {
		all = append(all, connect(t, s, false))
	}
	const login = `{"UserName":"` + redfishtest.User + `","Password":"` + redfishtest.Password + `"}`
	if status, text := request(t, s, "", "POST", "/redfish/v1/SessionService/Sessions", login); status != 503 || !strings.Contains(text, "end one") {
		t.Errorf("the answer to the session beyond the limit is %d %s", status, text)
	}
	if _, text := request(t, s, redfishtest.Password, "GET", "/redfish/v1/SessionService/Sessions", ""); !strings.Contains(text, fmt.Sprint(`"Members@odata.count":`, 16)) {
		t.Errorf("the list of sessions is %s, want 16", text)
	}
	ended := all[0].WithContext(t.Context())
	session, err := ended.GetSession()
	if err != nil {
		t.Fatal(err)
	}
	all[0].Logout()
	again, err := gofish.ConnectContext(t.Context(), gofish.ClientConfig{Endpoint: s.URL, Session: session, HTTPClient: client(s), NoModifyTransport: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Service.Systems(); err == nil {
		t.Error("an ended session is valid")
	}
	connect(t, s, false)
}
