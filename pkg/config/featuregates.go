package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config/upstream"
)

// FeatureGates are gates of Kubernetes with their values, for all components.
type FeatureGates map[string]bool

// reservedGate is a gate with values that a configuration cannot set.
type reservedGate struct {
	refused []bool // the values that cannot be set
	reason  string
	remedy  string
}

const (
	hardeningGate = "the gate is a part of the hardening of the system"
	noRemedy      = "omit it"
)

var (
	onlyOn   = []bool{false}
	onlyOff  = []bool{true}
	anyValue = []bool{true, false}
)

// reservedGates are the gates with values on which the system depends.
var reservedGates = map[string]reservedGate{
	"AllAlpha": {anyValue, "it switches gates on which the system depends", "name the gates themselves"},
	"AllBeta":  {anyValue, "it switches gates on which the system depends", "name the gates themselves"},

	"AllowServiceExternalIPs":            {anyValue, "Cluster.spec.networks.externalIPs decides it", "set the ranges there"},
	"CBORServingAndStorage":              {onlyOff, "etcd would hold objects that the API server cannot read after a rollback", noRemedy},
	"ClientsAllowCARotation":             {onlyOn, "the components could not follow the rotation of a CA", noRemedy},
	"GracefulNodeShutdown":               {onlyOn, "the kubelet could not end the pods in order before the machine is off", noRemedy},
	"ReloadKubeletClientCAFile":          {onlyOn, "the kubelet could not follow the rotation of a CA", noRemedy},
	"ReloadKubeletServerCertificateFile": {onlyOn, "the kubelet would serve an expired certificate after its renewal", noRemedy},

	"AllowDNSOnlyNodeCSR":                            {onlyOff, hardeningGate, noRemedy},
	"AllowInsecureKubeletCertificateSigningRequests": {onlyOff, hardeningGate, noRemedy},
	"AuthorizePodWebsocketUpgradeCreatePermission":   {onlyOn, hardeningGate, noRemedy},
	"DRAResourceClaimGranularStatusAuthorization":    {onlyOn, hardeningGate, noRemedy},
	"KubeletEnsureSecretPulledImages":                {onlyOn, hardeningGate, noRemedy},
	"ServiceAccountNodeAudienceRestriction":          {onlyOn, hardeningGate, noRemedy},
	"StrictIPCIDRValidation":                         {onlyOn, hardeningGate, noRemedy},
	"TokenRequestServiceAccountUIDValidation":        {onlyOn, hardeningGate, noRemedy},
	"UnauthenticatedHTTP2DOSMitigation":              {onlyOn, hardeningGate, noRemedy},
}

// PodCertificateGates returns the gates of Cluster.spec.podCertificates with their value. They are
// disabled by default before Kubernetes 1.37.
func PodCertificateGates() FeatureGates {
	return FeatureGates{"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true, "PodCertificateRequest": true}
}

// featureGates checks that Kubernetes knows each gate, and that the value is neither reserved nor
// rejected by a component.
func (v clusterValidator) featureGates(path string, spec *ClusterSpec) {
	gates := spec.Kubernetes.FeatureGates
	if len(gates) == 0 {
		return
	}
	known := upstream.Gates()
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		at, value := path+`["`+shorten(name)+`"]`, gates[name]
		gate, is := known[name]
		reserved := reservedGates[name]
		switch {
		case !is:
			v.on(at, wrong{
				reason: "Kubernetes has no such gate in this version", expected: "a gate of the present version of Kubernetes",
				nearest: nearest(name, upstream.Names(known)), hint: "omit it if its feature has become permanent",
			})
		case slices.Contains(reserved.refused, value):
			v.on(at, wrong{reason: fmt.Sprintf("%t is not possible: %s", value, reserved.reason), hint: reserved.remedy})
		case !value && spec.PodCertificates.Enabled && PodCertificateGates()[name]:
			v.on(at, wrong{reason: "false is not possible: Cluster.spec.podCertificates requires it", hint: "omit it, or disable the certificates of pods"})
		case !value && name == SealedPoliciesGate && !spec.Kubernetes.SealedPolicies.IsZero():
			v.on(at, wrong{reason: "false is not possible: Cluster.spec.kubernetes.sealedPolicies requires it", hint: "omit it, or remove the sealed policies"})
		case gate.Locked && value != gate.Default:
			v.on(at, wrong{reason: fmt.Sprintf("Kubernetes has locked the gate to %t", gate.Default), hint: noRemedy})
		}
	}
	v.requiredGates(path, gates, known)
}

// requiredGates checks that no enabled gate requires a disabled gate.
func (v clusterValidator) requiredGates(path string, gates FeatureGates, known map[string]upstream.Gate) {
	on := func(name string) bool {
		if value, given := gates[name]; given {
			return value
		}
		return known[name].Default
	}
	// maps a disabled gate to the gates that require it and that are enabled by default
	dependents := map[string][]string{}
	for _, name := range upstream.Names(known) {
		missing := slices.DeleteFunc(slices.Clone(known[name].Requires), on)
		if !on(name) || len(missing) == 0 {
			continue
		}
		if _, given := gates[name]; given {
			v.on(path+`["`+name+`"]`, wrong{reason: "it requires gates that are off: " + strings.Join(missing, ", "), hint: "set them to true, too"})
			continue
		}
		for _, other := range missing {
			dependents[other] = append(dependents[other], name)
		}
	}
	for name, others := range dependents {
		v.on(path+`["`+name+`"]`, wrong{reason: "gates that are on require it: " + strings.Join(others, ", "), hint: "set them to false, too"})
	}
}
