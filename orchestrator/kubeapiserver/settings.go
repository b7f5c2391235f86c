package kubeapiserver

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit/apis/eventratelimit/validation"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Check returns why the API server would not start with the settings of spec; nil if it would.
// CheckAccess checks authentication and authorization.
func Check(spec nodespec.Spec) error {
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(spec.Kubernetes.FeatureGates); err != nil {
		return fmt.Errorf("featureGates: %w", err)
	}
	if _, err := auditpolicy.LoadPolicyFromBytes([]byte(auditPolicy(spec.Kubernetes.Audit.Rules))); err != nil {
		return fmt.Errorf("audit.rules: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	decoded, err := runtime.Decode(codecs.UniversalDecoder(), []byte(admissionConfig(spec, "/")))
	if err != nil {
		return fmt.Errorf("apiServer.admission: %w", err)
	}
	admission, ok := decoded.(*apiserver.AdmissionConfiguration)
	if !ok {
		return fmt.Errorf("apiServer.admission: is a %T", decoded)
	}
	for _, p := range admission.Plugins {
		if err := checkPlugin(p.Name, p.Configuration.Raw); err != nil {
			return fmt.Errorf("apiServer.admission: %s: %w", p.Name, err)
		}
	}
	if err := checkSealed(spec.Kubernetes.SealedPolicies); err != nil {
		return fmt.Errorf("sealedPolicies: %w", err)
	}
	return nil
}

// checkPlugin reads the settings of a plugin of upstream as the plugin does.
func checkPlugin(name string, settings []byte) error {
	switch name {
	case eventratelimit.PluginName:
		config, err := eventratelimit.LoadConfiguration(bytes.NewReader(settings))
		if err != nil {
			return err
		}
		return validation.ValidateConfiguration(config).ToAggregate()
	case resourcequota.PluginName:
		_, err := resourcequota.LoadConfiguration(bytes.NewReader(settings))
		return err
	}
	return nil
}
