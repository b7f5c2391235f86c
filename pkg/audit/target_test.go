package audit

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestTemplatesFit checks that every template of the API parses and names only fields of its
// request that can be printed as a text.
func TestTemplatesFit(t *testing.T) {
	seen := 0
	services := api.File_orlop_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			rule, _ := proto.GetExtension(m.Options(), api.E_Audit).(*api.AuditRule)
			if rule.GetTarget() == "" {
				continue
			}
			seen++
			for _, problem := range misfits(rule.GetTarget(), m.Input()) {
				t.Errorf("%s: %s: %s", m.FullName(), rule.GetTarget(), problem)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d methods have a template", seen)
	}
	for _, bad := range []string{"{nme}", "[name?x", "name}", "[nme?x]", "{kill", "[name?{nme}]", "[x|name?y]"} {
		if len(misfits(bad, (&api.RestartServiceRequest{}).ProtoReflect().Descriptor())) == 0 {
			t.Errorf("misfits finds no problem in the invalid template %s", bad)
		}
	}
}

// misfits returns the problems of a template for a request.
func misfits(template string, request protoreflect.MessageDescriptor) (problems []string) {
	field := func(name string) {
		f := request.Fields().ByName(protoreflect.Name(name))
		switch {
		case f == nil:
			problems = append(problems, "there is no field "+name)
		case f.IsList(), f.IsMap(), f.Kind() == protoreflect.BytesKind,
			f.Message() != nil && f.Message().FullName() != "google.protobuf.Duration":
			problems = append(problems, name+" has no text")
		}
	}
	for _, choice := range choices.FindAllString(template, -1) {
		options := strings.Split(choice[1:len(choice)-1], "|")
		for i, option := range options {
			name, _, conditional := strings.Cut(option, "?")
			if conditional {
				field(name)
			}
			if !conditional && i+1 < len(options) {
				problems = append(problems, option+" has no condition, so the options after it are never used")
			}
		}
	}
	for _, f := range fields.FindAllString(template, -1) {
		field(f[1 : len(f)-1])
	}
	rest := fields.ReplaceAllString(template, "")
	if strings.ContainsAny(rest, "{}") || strings.ContainsAny(choices.ReplaceAllString(rest, ""), "[]|") {
		problems = append(problems, "a bracket or brace has no partner")
	}
	return problems
}

func TestTarget(t *testing.T) {
	restore := "[undo?undo|stored?snapshot {stored}|SHA-256 {sha256}]"
	for _, c := range []struct {
		template string
		request  proto.Message
		want     string
	}{
		{"", &api.PowerRequest{}, ""},
		{"service {name}", &api.RestartServiceRequest{}, "service "},
		{"service {name}", &api.RestartServiceRequest{Name: "etcd"}, "service etcd"},
		{restore, &api.EtcdRestoreRequest{Sha256: "ab"}, "SHA-256 ab"},
		{restore, &api.EtcdRestoreRequest{Sha256: "ab", Stored: "s"}, "snapshot s"},
		{restore, &api.EtcdRestoreRequest{Sha256: "ab", Stored: "s", Undo: true}, "undo"},
		{"{wipe}", &api.ResetRequest{}, "unspecified"},
		{"{wipe}", &api.ResetRequest{Wipe: api.ResetRequest_WIPE_DATA}, "data"},
		{"{wipe}", &api.ResetRequest{Wipe: 99}, "99"},
		{"[number?{number}]", &api.ApplyRequest{Number: math.MaxUint64}, "18446744073709551615"},
		{"[ttl?for {ttl}]", &api.KubeconfigRequest{}, ""},
		{"[ttl?for {ttl}]", &api.KubeconfigRequest{Ttl: durationpb.New(0)}, ""},
		{"[ttl?for {ttl}]", &api.KubeconfigRequest{Ttl: durationpb.New(-time.Hour)}, ""},
		{"[ttl?for {ttl}]", &api.KubeconfigRequest{Ttl: durationpb.New(90 * time.Minute)}, "for 1h30m0s"},
		{"service {name}[kill?, kill]", &api.RestartServiceRequest{Name: "{kill}[kill?x]"}, "service {kill}[kill?x]"},
		{"[nothing?x|y]{nothing}", &api.RestartServiceRequest{}, "y"},
	} {
		if got := Target(c.template, c.request); got != c.want {
			t.Errorf("%s of %v: %q, want %q", c.template, c.request, got, c.want)
		}
	}
}
