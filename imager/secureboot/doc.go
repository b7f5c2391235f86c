// Package secureboot makes keys for UEFI Secure Boot, signs PE images with them, and makes the
// files by which a boot loader enrolls them:
//
//	keys.go     PK, KEK and db: key, certificate and enrollment file of each
//	signer.go   the signer of a build: a key in a file, or a command
//	sign.go     the signature of an image (Authenticode)
//	enroll.go   an enrollment file (.auth): a signed content of a variable
//	pkcs7.go    the signature of both
//
// The same key and the same input give the same bytes: RSA with PKCS #1 v1.5 is deterministic, and
// a signature contains no time. The package does not store keys.
package secureboot
