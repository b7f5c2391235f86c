package machineobject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/definitions"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). The command `step` calls the function step
// and stores the resulting status in the object.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *script {
		return &script{t: t, input: input{object: &machineapi.OrlopMachine{}, state: &api.ObjectState{Kubernetes: "v1.37.2"}, now: time.Now()}}
	}, scripttest.Commands[*script]{
		"object":  (*script).setObject,  // object [release=2.0.0] [permit=2.0.0 [life=5m]]
		"machine": (*script).setMachine, // machine 1.0.0 [phase to from [reason]]
		"log":     (*script).setLog,     // log: an upgrade log of 40 lines
		// drain [PHASE EVICTED LEFT [POD BUDGET MESSAGE]]: the drain of the node, or none
		"drain":   (*script).setDrain,
		"problem": (*script).setProblem, // problem [text]: the machine has this problem, or none
		// answer 2.0.0 none|accepted|refused: the response of machined to the request of 2.0.0
		"answer": (*script).answer,
		"later":  (*script).later,  // later 30s: the clock advances
		"step":   (*script).step,   // step: prints the status and the change
		"failed": (*script).failed, // failed: prints status.failed
		"why":    (*script).why,    // why Updating: prints the message of a condition
	})
}

type script struct {
	t *testing.T
	input
}

// reference parses a release of the form VERSION[@NAME], in which NAME is the name of the image.
func reference(text string) machineapi.ReleaseReference {
	version, image, named := strings.Cut(text, "@")
	if named {
		image = "registry.example.com/" + image + digest
	}
	return machineapi.ReleaseReference{Version: version, Image: image}
}

// digest is the digest of all images in the scripts.
var digest = "@sha256:" + strings.Repeat("0", 64)

// checkStatus validates a status by the CustomResourceDefinition, as the API server does.
func checkStatus(t *testing.T, s machineapi.OrlopMachineStatus) {
	t.Helper()
	all, err := definitions.All(false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d *apiextensionsv1.CustomResourceDefinition) bool { return d.Spec.Names.Kind == "OrlopMachine" })
	props := all[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&props, internal, nil); err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range validation.ValidateCustomResource(field.NewPath("status"), object, validator) {
		t.Error(err)
	}
}

func (s *script) setObject(args []string) string {
	s.object.Generation++
	s.object.Spec = machineapi.OrlopMachineSpec{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "release":
			r := reference(value)
			s.object.Spec.Release = &r
		case "permit":
			s.object.Spec.Permit = &machineapi.Permit{Release: reference(value), Expires: metav1.NewTime(s.now.Add(5 * time.Minute))}
		case "life":
			life, err := time.ParseDuration(value)
			if err != nil {
				s.t.Fatal(err)
			}
			s.object.Spec.Permit.Expires = metav1.NewTime(s.now.Add(life))
		case "peers":
			s.object.Spec.Permit.Peers = strings.Split(value, ",")
		default:
			s.t.Fatalf("object: unknown argument %s", a)
		}
	}
	return ""
}

func (s *script) setMachine(args []string) string {
	s.state.Version, s.state.Upgrade = args[0], &api.UpgradeStatus{}
	if len(args) > 1 {
		u := &api.UpgradeStatus{Phase: strings.ReplaceAll(args[1], "-", " "), To: args[2], From: args[3], Reason: strings.Join(args[4:], " "), Started: timestamppb.New(s.now)}
		if u.Phase != "writing" && u.Phase != "written" && u.Phase != "trial" {
			u.Ended = timestamppb.New(s.now)
		}
		s.state.Upgrade = u
	}
	return ""
}

func (s *script) setLog([]string) string {
	for i := range 40 {
		s.state.Upgrade.Log = append(s.state.Upgrade.Log, fmt.Sprintf("line %d of a boot that failed", i))
	}
	return ""
}

func (s *script) setDrain(args []string) string {
	if len(args) == 0 {
		s.state.Drain = nil
		return ""
	}
	evicted, err := strconv.ParseInt(args[1], 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	left, err := strconv.ParseInt(args[2], 10, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Drain = &api.Drain{Operation: "upgrade", Policy: "respect", Phase: args[0], Evicted: evicted, Left: left, Started: timestamppb.New(s.now), Deadline: timestamppb.New(s.now)}
	if len(args) > 3 {
		for range 10 { // more than maxBlocking
			s.state.Drain.Blocking = append(s.state.Drain.Blocking, &api.BlockingPod{Pod: args[3], Budget: args[4], Message: strings.Join(args[5:], " ")})
		}
		s.state.Drain.Problem = strings.Repeat("x", 2*maxText)
	}
	return ""
}

func (s *script) setProblem(args []string) string {
	s.state.Problem = strings.Join(args, " ")
	return ""
}

func (s *script) answer(args []string) string {
	s.last = attempt{version: args[0], ended: s.now}
	switch args[1] {
	case "none":
		s.last.running = true
	case "refused":
		s.last.problem = "upgrade refused: control-plane machine b reboots"
	}
	return ""
}

func (s *script) later(args []string) string {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.now = s.now.Add(d)
	return ""
}

func (s *script) step([]string) string {
	next, change := step(s.input)
	s.object.Status = next
	checkStatus(s.t, next)
	var out strings.Builder
	r := next.Release
	fmt.Fprintf(&out, "%s", r.Version)
	if r.OnTrial {
		out.WriteString(" on trial")
	}
	if r.Since != nil {
		fmt.Fprintf(&out, " since %s", r.Since.UTC().Format(time.TimeOnly))
	}
	for _, c := range next.Conditions {
		fmt.Fprintf(&out, ", %s %s %s", c.Type, c.Status, c.Reason)
	}
	if next.Failed != nil {
		fmt.Fprintf(&out, ", failed %s", next.Failed.Release.Version)
	}
	if d := next.Drain; d != nil {
		fmt.Fprintf(&out, ", drain %s for the %s: %d evicted, %d left", d.Phase, d.Operation, d.Evicted, d.Left)
		if len(d.Blocking) > 0 {
			fmt.Fprintf(&out, ", %d of them blocked, by %s", len(d.Blocking), d.Blocking[0].Budget)
		}
	}
	if change != nil {
		fmt.Fprintf(&out, "\n=> change to %s from %s, peers %v", change.Version, strings.TrimSuffix(change.Image, digest), change.Peers)
	}
	return out.String() + "\n"
}

func (s *script) failed([]string) string {
	f := s.object.Status.Failed
	return fmt.Sprintf("%s %s\n%s\n%d bytes of log:\n%s\n", f.Release.Version, strings.TrimSuffix(f.Release.Image, digest), f.Reason, len(f.Log), f.Log)
}

func (s *script) why(args []string) string {
	for _, c := range s.object.Status.Conditions {
		if c.Type == args[0] {
			return c.Message + "\n"
		}
	}
	return "no such condition\n"
}
