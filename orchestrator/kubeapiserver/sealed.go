package kubeapiserver

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/sets"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/kubernetes/pkg/admission/plugin/policy/manifest/loader"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Sealed policies are in a file in a directory of the server, which upstream's plugin reads at its
// start (docs/decisions/0118-sealed-policies.md). All policies are in a single file, so that a new
// configuration replaces all of them.
const (
	sealedDir  = "sealed"
	sealedFile = "policies.yaml"
)

// systemPolicy is the sealed policy of the system, a text/template. It applies to all requests that
// reach the plugin. The requests in exemptions skip the plugin: requests of the API server itself,
// by which upstream and package bootstrap create their objects; of kubelets; of the controllers of
// Kubernetes for their own objects; and of an administrator of the machines for a repair. The
// policy permits the requests of the controller of add-ons, because an operator of the machines
// writes the documents of add-ons.
//
//go:embed sealed.yaml
var systemPolicy string

// sealedPolicies returns the content of the file: the policies of the system and of the site.
func sealedPolicies(s config.SealedPolicies) string {
	var texts []string
	if s.System {
		texts = append(texts, systemPolicies())
	}
	return strings.Join(append(texts, s.Manifests...), "\n---\n")
}

// systemPolicies returns systemPolicy with the names of the system filled in.
func systemPolicies() string {
	var b strings.Builder
	err := template.Must(template.New("sealed.yaml").Option("missingkey=error").Parse(systemPolicy)).Execute(&b, map[string]string{
		"Addons": nodespec.AddonsNamespace, "AddonsUser": nodespec.AddonsUser, "Machines": machineapi.Namespace,
		"Own": bootstrap.LabelOwn, "MetricsService": bootstrap.MetricsService,
		"PodAuthorities": bootstrap.PodAuthorities, "PodTrust": bootstrap.PodTrust,
		"Impersonator": impersonatorKey, "Accounts": "['" + strings.Join(sets.List(exemptAccounts()), "', '") + "']",
	})
	if err != nil {
		panic(err) // the template is constant
	}
	return b.String()
}

// exemptAccounts returns the service accounts of kube-system in exemptions.
func exemptAccounts() sets.Set[string] {
	accounts := sets.Set[string]{}
	for _, e := range exemptions {
		if namespace, name, err := serviceaccount.SplitUsername(e.user); err == nil && namespace == "kube-system" {
			accounts.Insert(name)
		}
	}
	return accounts
}

// sealedConfig returns the item of the list of plugins that names the directory.
func sealedConfig(dir string) object {
	return object{"name": validatingpolicy.PluginName, "configuration": object{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ValidatingAdmissionPolicyConfiguration", "staticManifestsDir": dir,
	}}
}

// sealedFlags are the flags of sealed policies. The gate is on by default since Kubernetes 1.37, so
// a server that emulates a former version needs the flag.
func sealedFlags(spec nodespec.Spec) []string {
	if spec.Kubernetes.SealedPolicies.IsZero() || !spec.Emulated.Known() || !spec.Emulated.OlderThan(emulation.Minor{Major: 1, Minor: 37}) {
		return nil
	}
	return []string{component.GateFlag(config.FeatureGates{config.SealedPoliciesGate: true})}
}

// checkSealed loads the policies as the plugin does, which includes upstream's validation and the
// compilation of the expressions.
func checkSealed(s config.SealedPolicies) error {
	if s.IsZero() {
		return nil
	}
	dir, err := os.MkdirTemp("", sealedDir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, sealedFile)
	if err := os.WriteFile(file, []byte(sealedPolicies(s)), 0o600); err != nil {
		return err
	}
	loaded, err := loader.LoadValidatingManifestsFromDirectory(dir)
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), file, "manifests"))
	}
	unbound := map[string]bool{}
	for _, p := range loaded.Policies {
		unbound[p.Name] = true
	}
	for _, b := range loaded.Bindings {
		delete(unbound, b.Spec.PolicyName)
	}
	if len(unbound) > 0 {
		return fmt.Errorf("no binding names the policy %s, so it has no effect; add a ValidatingAdmissionPolicyBinding", strings.Join(slices.Sorted(maps.Keys(unbound)), ", "))
	}
	return nil
}
