package tidelog.kafka;

import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.auth.SaslExtensions;
import org.apache.kafka.common.security.auth.SaslExtensionsCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;

/** Sends a broker the token in the client's JAAS settings, without checking the token. */
public final class GivenToken implements AuthenticateCallbackHandler {
    private static final long LIFE_MS = 3_600_000;

    private String value;

    /** Kafka creates the handler by the name of its class. */
    public GivenToken() {}

    /** A token whose claims are not read, so that the client does not refuse the token. */
    private record Unread(String value, long startMs) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return startMs + LIFE_MS;
        }

        @Override
        public String principalName() {
            return "somebody";
        }

        @Override
        public Long startTimeMs() {
            return startMs;
        }
    }

    @Override
    public void configure(
            Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
        value = (String) entries.get(0).getOptions().get("token");
    }

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerTokenCallback wanted) {
                wanted.token(new Unread(value, System.currentTimeMillis()));
            } else if (callback instanceof SaslExtensionsCallback more) {
                more.extensions(SaslExtensions.empty());
            } else {
                throw new UnsupportedCallbackException(callback);
            }
        }
    }

    @Override
    public void close() {}
}
